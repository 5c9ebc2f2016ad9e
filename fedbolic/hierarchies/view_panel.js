"use strict";
// What one does with the page: look for a name, choose a node, move, zoom; with pointer or keys.

const NEAREST = 8, FOUND = 12, FLIGHT = 650; // entries of lists; milliseconds of a flight
const element = id => document.getElementById(id);
const still = matchMedia("(prefers-reduced-motion: reduce)");

let flight = 0, quiet = 0, last = 0, waiting = false, answers = [], marked = -1;

/** Draw at the next frame, fast, and once more in full when nothing moved for a while. */
function redraw() {
  clearTimeout(quiet);
  quiet = setTimeout(() => { shown = draw(); }, 140);
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(now => {
    waiting = false;
    // the number of edges that this machine draws in time: by the time from one frame to the next
    const took = now - last;
    if (took < 200) budget = Math.min(20000, Math.max(300, budget * (took > 30 ? 0.75 : took < 20 ? 1.15 : 1)));
    last = now;
    shown = draw(budget);
  });
  element("zoom").value = Math.log(zoom);
  element("scale").textContent = Math.abs(zoom - 1) < 1e-9 ? "Scale 1: the Poincaré disc"
    : `Scale ${zoom.toPrecision(2)}: true directions, radii tanh(scale × distance / 2)`;
}
let shown = [];

/** Fly to a node along the geodesic, to another zoom if one is given. */
function fly(i, scale = zoom) {
  cancelAnimationFrame(flight);
  const start = here, way = arrival(start, hi[i], lo[i], radius[i]), from = zoom, began = performance.now();
  const turn = now => {
    const time = still.matches ? 1 : Math.min(1, (now - began) / FLIGHT), eased = time * time * (3 - 2 * time);
    here = along(start, way, Math.max(0, eased));
    zoom = from * (scale / from) ** eased;
    if (time >= 1) [here, zoom] = [way.place, scale];
    else flight = requestAnimationFrame(turn);
    redraw();
  };
  turn(began);
}

/** Mark a node; the view flies to it only if it stands near the rim. */
function choose(i) {
  chosen = i;
  path = new Set(i < 0 ? [] : pathOf(i));
  near = new Set(i < 0 ? [] : nearest(i, NEAREST).map(each => each.i));
  describe(i);
  if (i >= 0 && (place[i] !== frame || ps[i] > 0.97)) fly(i, closeUp(i));
  else redraw();
}

/** The nearest nodes, by a pass over all. */
function nearest(i, k) {
  const eye = eyeAt(point(i)), best = [];
  for (let j = 0; j < names.length; j++) {
    look(eye, hi[j], lo[j], grow[j], rise[j]);
    if (j === i || best.length === k && seen.s >= best[k - 1].s) continue;
    const at = best.findIndex(each => each.s > seen.s);
    best.splice(at < 0 ? best.length : at, 0, {i: j, s: seen.s});
    if (best.length > k) best.pop();
  }
  return best;
}

function entry(i, far) {
  const item = document.createElement("li"), button = document.createElement("button");
  for (const [text, kind] of [[short(i, 60), ""], [far ?? "", "far"]]) {
    const part = document.createElement("span");
    [part.textContent, part.className] = [text, kind];
    button.append(part);
  }
  button.title = names[i];
  button.onclick = () => choose(i);
  item.append(button);
  return item;
}

function describe(i) {
  const box = element("node"), add = (tag, text, own = {}) => {
    const made = Object.assign(document.createElement(tag), {textContent: text}, own);
    box.append(made);
    return made;
  };
  const list = (title, entries) => {
    if (!entries.length) return;
    add("h2", title);
    add("ul", "").append(...entries);
  };
  box.replaceChildren();
  if (i < 0) return;
  add("h2", "Chosen");
  add("p", names[i], {id: "name"});
  add("p", `${(end[i] - i - 1).toLocaleString("en")} below · ${radius[i].toFixed(2)} from the origin`, {className: "soft"});
  list("Path to the root", pathOf(i).slice(1).map(j => entry(j)));
  list("Also under", (more.get(i) ?? []).map(j => entry(j)));
  list("Nearest", nearest(i, NEAREST).map(each => entry(each.i, distanceOf(each.s).toFixed(2))));
  const below = children(i);
  list(below.length > 40 ? `Children, 40 of ${below.length}` : "Children", below.slice(0, 40).map(j => entry(j, edge[j].toFixed(2))));
}

/** Names that contain the words, those that begin with them first, then the shortest. */
function search(text) {
  const words = text.trim().toLowerCase(), found = [];
  if (!words) return found;
  for (let i = 0; i < names.length; i++) {
    const own = short(i, 200).toLowerCase(), at = own.indexOf(words);
    const whole = at >= 0 ? at : names[i].toLowerCase().includes(words) ? 1e6 : -1;
    if (whole >= 0) found.push({i, worth: (own === words ? -1e7 : 0) + Math.min(whole, 1) * 1e6 + own.length});
  }
  return found.sort((a, b) => a.worth - b.worth).slice(0, FOUND).map(each => each.i);
}

function showAnswers(list) {
  [answers, marked] = [list, list.length ? 0 : -1];
  element("found").replaceChildren(...list.map((i, k) => {
    const item = Object.assign(document.createElement("li"), {id: `answer${k}`, title: names[i]});
    const text = document.createElement("span");
    text.textContent = short(i, 60);
    item.setAttribute("role", "option");
    item.append(text);
    item.onclick = () => take(k);
    return item;
  }));
  element("find").setAttribute("aria-expanded", String(list.length > 0));
  mark(marked);
}

function mark(k) {
  marked = k;
  [...element("found").children].forEach((item, at) => item.setAttribute("aria-selected", String(at === k)));
  element("find").setAttribute("aria-activedescendant", k < 0 ? "" : `answer${k}`);
}

function take(k) {
  const i = answers[k];
  showAnswers([]);
  if (i === undefined) return;
  canvas.focus();
  choose(i);
}

function zoomTo(value, x = 0, y = 0) {
  const next = within(Math.abs(Math.log(value)) < 0.02 ? 1 : value), out = Math.min(0.95, Math.hypot(x, y));
  if (out > 0.01) { // the point under the pointer stays
    const far = 2 * Math.atanh(out);
    pan(Math.atan2(y, x), far / zoom - far / next);
  }
  zoom = next;
  redraw();
}

/** Move the middle of the view by a distance towards an angle on the screen. */
function pan(angle, t) {
  const way = angle - here.tilt;
  here = t < 0 ? step(here, -Math.cos(way), -Math.sin(way), -t) : step(here, Math.cos(way), Math.sin(way), t);
}

/** Drag one point of the disc to another by the translation c of the disc: (a + c) / (1 + c* a) = b. */
function drag(a, b) {
  const kx = a.x * b.x - a.y * b.y, ky = a.x * b.y + a.y * b.x, mx = b.x - a.x, my = b.y - a.y;
  const below = Math.max(0.02, 1 - kx * kx - ky * ky);
  const [x, y] = [(mx + kx * mx + ky * my) / below, (my + ky * mx - kx * my) / below];
  const length = Math.min(0.9, Math.hypot(x, y));
  if (length) pan(Math.atan2(-y, -x), 2 * Math.atanh(length) / zoom);
}

function spot(event) {
  const box = canvas.getBoundingClientRect();
  const [x, y] = [(event.clientX - box.left - middle.x) / size, (middle.y - event.clientY + box.top) / size];
  const out = Math.hypot(x, y), most = Math.min(1, 0.93 / (out || 1));
  return {x: x * most, y: y * most, left: event.clientX - box.left, top: event.clientY - box.top};
}

/** The drawn node at a point of the canvas, or -1. */
function nodeAt({left, top}) {
  let [best, gap] = [-1, 14 * 14];
  for (const i of shown) {
    const far = (px[i] - left) ** 2 + (py[i] - top) ** 2;
    if (far < gap) [best, gap] = [i, far];
  }
  return best;
}

function listenPointer() {
  const held = new Map();
  let moved = 0;
  canvas.onpointerdown = event => {
    canvas.setPointerCapture(event.pointerId);
    held.set(event.pointerId, spot(event));
    cancelAnimationFrame(flight);
    moved = 0;
  };
  canvas.onpointermove = event => {
    const now = spot(event), before = held.get(event.pointerId);
    if (!before) {
      const at = nodeAt(now);
      if (at !== under) [under, canvas.title] = [at, at < 0 ? "" : names[at]], redraw();
      return;
    }
    moved += Math.hypot(now.left - before.left, now.top - before.top);
    const other = [...held].find(([id]) => id !== event.pointerId)?.[1];
    held.set(event.pointerId, now);
    if (moved < 4) return held.set(event.pointerId, before);
    if (other) zoomTo(zoom * Math.hypot(now.left - other.left, now.top - other.top) /
      Math.max(1, Math.hypot(before.left - other.left, before.top - other.top)));
    else drag(before, now);
    redraw();
  };
  canvas.onpointerup = canvas.onpointercancel = event => {
    held.delete(event.pointerId);
    if (moved < 4 && event.type === "pointerup") {
      const at = nodeAt(spot(event));
      if (at >= 0 && at === chosen) fly(at);
      else if (at >= 0) choose(at);
    }
  };
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    const {x, y} = spot(event);
    zoomTo(zoom * Math.exp(-event.deltaY * (event.deltaMode ? 0.03 : 0.0012)), x, y);
  }, {passive: false});
}

const ARROWS = {ArrowUp: Math.PI / 2, ArrowDown: -Math.PI / 2, ArrowLeft: Math.PI, ArrowRight: 0};

/** The parent, first child, or next sibling of the chosen node. */
function walk(key) {
  if (chosen < 0) return 0;
  if (key === "ArrowUp") return parent[chosen];
  if (key === "ArrowDown") return end[chosen] > chosen + 1 ? chosen + 1 : -1;
  const row = parent[chosen] < 0 ? roots() : children(parent[chosen]), at = row.indexOf(chosen);
  return row[(at + (key === "ArrowRight" ? 1 : row.length - 1)) % row.length];
}

function listenKeys() {
  const actions = {"+": () => zoomTo(zoom * 1.25), "=": () => zoomTo(zoom * 1.25), "-": () => zoomTo(zoom / 1.25),
    f: () => chosen >= 0 && fly(chosen, closeUp(chosen)), Home: whole, 0: whole, Escape: () => choose(-1)};
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/" && event.target.id !== "find") return event.preventDefault(), element("find").focus();
    if (event.target !== canvas && event.target !== document.body) return;
    if (event.key in ARROWS) {
      event.preventDefault();
      if (event.shiftKey) return pan(ARROWS[event.key], 0.25 / zoom), redraw();
      const to = walk(event.key);
      if (to >= 0) choose(to);
    } else if (Object.hasOwn(actions, event.key)) event.preventDefault(), actions[event.key]();
  });
  const find = element("find");
  find.oninput = () => showAnswers(search(find.value));
  find.onkeydown = event => {
    const moves = {ArrowDown: 1, ArrowUp: -1};
    if (event.key in moves && answers.length) event.preventDefault(), mark((marked + moves[event.key] + answers.length) % answers.length);
    else if (event.key === "Enter") take(marked);
    else if (event.key === "Escape") showAnswers([]), canvas.focus();
  };
}

function whole() {
  cancelAnimationFrame(flight);
  home();
  redraw();
}

async function begin() {
  const head = await unpack(element("data").textContent);
  document.title = element("title").textContent = head.title;
  element("about").textContent = `${names.length.toLocaleString("en")} nodes. ${note}`;
  home();
  resize();
  listenPointer();
  listenKeys();
  element("all").onclick = whole;
  element("close").onclick = () => chosen >= 0 && fly(chosen, closeUp(chosen));
  element("zoom").oninput = event => zoomTo(Math.exp(Number(event.target.value)));
  const again = () => { resize(); shown = draw(); };
  new ResizeObserver(again).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  redraw();
  shown = draw();
}

begin();
