"use strict";
// The nodes of the page and their drawing. Nodes come in preorder, so the descendants of node i are
// i + 1 .. end[i] - 1, and a subtree beyond sight is left out in one step.

const canvas = document.getElementById("map"), pen = canvas.getContext("2d");
const LINE = 14, BRANCHES = 7; // points of the longest curves; least number of colours
const DOT = 1.1, SIGHT = 0.9996; // smallest radius of a node in pixels; where the disc's rim begins

let names, depth, parent, end, hi, lo, radius, grow, rise, reach, hue, branch, more, note;
let here, zoom = 1, size = 1, middle = {x: 0, y: 0}, ratio = 1;
let chosen = -1, under = -1, path = new Set(), near = new Set();
let place, px, py, ps, taken, frame = 0, drawn = 0, budget = 2000, colours;

/** Unpack the data of the page: a JSON text, then one array after another. */
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), each => each.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  const buffer = await new Response(stream).arrayBuffer();
  const length = new DataView(buffer).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  let from = 8 + length;
  const take = kind => {
    const part = new kind(buffer.slice(from, from + head.names.length * kind.BYTES_PER_ELEMENT));
    from += part.byteLength;
    return part;
  };
  ({names, note} = head);
  [radius, hi, lo, depth] = [Float64Array, Uint32Array, Uint32Array, Uint16Array].map(take);
  more = new Map();
  for (const [child, above] of head.more) more.set(child, [...(more.get(child) ?? []), above]);
  prepare();
  return head;
}

/** Everything that follows from depths and coordinates. */
function prepare() {
  const n = names.length, open = [];
  [parent, end, branch] = [new Int32Array(n), new Int32Array(n).fill(n), new Int32Array(n)];
  [grow, rise, reach, hue, px, py, ps] = Array.from({length: 7}, () => new Float64Array(n));
  place = new Int32Array(n).fill(-1);
  for (let i = 0; i < n; i++) {
    while (open.length > depth[i]) end[open.pop()] = i;
    parent[i] = open.length ? open[open.length - 1] : -1;
    open.push(i);
    [grow[i], rise[i]] = [Math.exp(radius[i]), Math.sinh(radius[i])];
  }
  const length = new Float64Array(n); // of the edge to the parent; reach: exp(distance) of the farthest below
  for (let i = n - 1; i >= 0; i--) {
    reach[i] = Math.max(reach[i], 1);
    const p = parent[i];
    if (p < 0) continue;
    length[i] = bearing(point(p), hi[i], lo[i], radius[i]).d;
    reach[p] = Math.max(reach[p], reach[i] * Math.exp(length[i]));
  }
  edge = length;
  colour();
}
let edge;

function point(i) {
  return {hi: hi[i], lo: lo[i], rest: 0, r: radius[i], tilt: 0};
}

function children(i) {
  const found = [];
  for (let j = i + 1; j < end[i]; j = end[j]) found.push(j);
  return found;
}

function roots() {
  const found = [];
  for (let j = 0; j < names.length; j = end[j]) found.push(j);
  return found;
}

function pathOf(i) {
  const found = [];
  for (let j = i; j >= 0; j = parent[j]) found.push(j);
  return found;
}

/** One hue for every branch, by its place around the circle; the nodes above the branches are grey. */
function colour() {
  let heads = roots();
  const below = i => end[i] - i - 1;
  while (heads.length < BRANCHES && heads.some(below)) {
    const largest = heads.reduce((a, b) => below(a) >= below(b) ? a : b);
    heads = heads.flatMap(head => head === largest ? children(head) : [head]);
  }
  const around = [...heads].sort((a, b) => hi[a] - hi[b]);
  branch.fill(-1);
  around.forEach((head, k) => {
    branch.fill(k, head, end[head]);
    hue.fill(25 + 360 * k / around.length, head, end[head]);
  });
}

/** Where the view begins: about the origin, with nearly all nodes inside the disc. */
function home() {
  const sorted = Float64Array.from(radius).sort(), far = sorted[Math.floor(0.97 * (sorted.length - 1))];
  here = {hi: 0, lo: 0, rest: 0, r: 0, tilt: 0};
  zoom = Math.min(1, 2 * Math.atanh(0.93) / Math.max(far, 1e-9));
}

/** A zoom at which the parent and the children of a node stand well apart. */
function closeUp(i) {
  const next = [...children(i).map(j => edge[j]), ...(parent[i] < 0 ? [] : [edge[i]])].sort((a, b) => a - b);
  return next.length ? within(2 * Math.atanh(0.6) / next[next.length >> 1]) : zoom;
}

function within(value) {
  return Math.min(8, Math.max(0.01, value));
}

/** Share of the disc's radius at which a distance is drawn: tanh(zoom d / 2), the Poincare disc at 1. */
function share(d) {
  return Math.tanh(zoom * d / 2);
}

function resize() {
  const box = canvas.getBoundingClientRect();
  ratio = Math.min(window.devicePixelRatio || 1, 2);
  canvas.width = Math.max(1, Math.round(box.width * ratio));
  canvas.height = Math.max(1, Math.round(box.height * ratio));
  size = Math.max(20, Math.min(box.width, box.height) / 2 - 14);
  middle = {x: box.width / 2, y: box.height / 2};
  taken = new Uint32Array(Math.ceil(box.width / 2 + 1) * Math.ceil(box.height / 2 + 1));
  const style = getComputedStyle(document.documentElement);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const get = name => style.getPropertyValue(name).trim();
  colours = {ink: get("--ink"), halo: get("--disc"), disc: get("--disc"), rim: get("--rim"), grey: get("--soft"),
    accent: get("--accent"), light: dark ? "80%" : "55%", chroma: dark ? ".13" : ".15", opacity: dark ? 2.2 : 1.6};
}

function tone(i) {
  return branch[i] < 0 ? colours.grey : `oklch(${colours.light} ${colours.chroma} ${hue[i].toFixed(1)})`;
}

/** Project the nodes in sight; fills px, py (pixels), ps (share of the radius); returns them. */
function project() {
  const eye = eyeAt(here), [cos, sin] = [Math.cos(here.tilt), Math.sin(here.tilt)];
  const rim = 2 * Math.atanh(1 - 1 / size) / zoom, cut = Math.exp(Math.min(600, Math.max(rim, Math.log(4 * size)))) / 4;
  const visible = [], n = names.length, disc = zoom === 1;
  for (let i = 0; i < n;) {
    look(eye, hi[i], lo[i], grow[i], rise[i]);
    const {x, y, s} = seen, d = 1 + s;
    let scale;
    if (disc) scale = 0.5 / d;
    else {
      const q = Math.pow(Math.sqrt(s) + Math.sqrt(d), 2 * zoom);
      scale = s ? (q - 1) / (q + 1) / (2 * Math.sqrt(s * d)) : 0;
    }
    px[i] = middle.x + size * scale * (x * cos - y * sin);
    py[i] = middle.y - size * scale * (x * sin + y * cos);
    ps[i] = scale * 2 * Math.sqrt(s * d);
    place[i] = frame;
    visible.push(i);
    i = s > cut * reach[i] ? end[i] : i + 1; // the whole subtree is a pixel of the rim
  }
  return visible;
}

/** True once a frame for every cell of two pixels. */
function free(x, y) {
  const at = (y >> 1) * Math.ceil(middle.x + 1) + (x >> 1);
  if (taken[at] === frame) return false;
  taken[at] = frame;
  return true;
}

/** Add the geodesic between two projected nodes to a path. */
function curve(line, i, j, length) {
  const [ax, ay, bx, by] = [px[i], py[i], px[j], py[j]], wide = Math.hypot(ax - bx, ay - by);
  line.moveTo(ax, ay);
  if (wide > 5 && length > 0.05) bend(line, i, j, length, Math.min(LINE, 4 + wide / 8 | 0));
  line.lineTo(bx, by);
}

/** Points of a geodesic: of the hyperboloid, weighted means of its ends by sinh of arc lengths. */
function bend(line, i, j, length, count) {
  const [di, dj] = [2 * Math.atanh(Math.min(ps[i], 1 - 1e-16)) / zoom, 2 * Math.atanh(Math.min(ps[j], 1 - 1e-16)) / zoom];
  const [ci, cj] = [Math.cosh(di), Math.cosh(dj)], [e, f] = [Math.exp(length), Math.exp(-length)];
  const below = cj - ci * f, above = ci * e - cj;
  // the arc length at which the curve is nearest to the middle; there it bends, so points are dense
  const foot = below > 0 && above > 0 ? Math.min(length, Math.max(0, Math.log(above / below) / 2)) : below > 0 ? 0 : length;
  const [first, last] = [Math.asinh(-foot), Math.asinh(length - foot)];
  const [si, sj] = [Math.sinh(di) / (ps[i] * size || 1), Math.sinh(dj) / (ps[j] * size || 1)];
  const [ix, iy, jx, jy] = [(px[i] - middle.x) * si, (py[i] - middle.y) * si, (px[j] - middle.x) * sj, (py[j] - middle.y) * sj];
  for (let k = 1; k < count; k++) {
    const t = foot + Math.sinh(first + (last - first) * k / count);
    const [a, b] = [Math.sinh(length - t), Math.sinh(t)].map(v => v / Math.sinh(length));
    const [x, y, w] = [a * ix + b * jx, a * iy + b * jy, a * ci + b * cj];
    const out = Math.hypot(x, y);
    if (!(out > 0)) continue;
    const at = size * share(Math.acosh(Math.max(1, w))) / out;
    line.lineTo(middle.x + x * at, middle.y + y * at);
  }
}

/** Draw all; while the view moves at most a number of edges, those of whole branches first. */
function draw(most = Infinity) {
  frame++;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, 2 * middle.x, 2 * middle.y);
  pen.beginPath();
  pen.arc(middle.x, middle.y, size, 0, 2 * Math.PI);
  pen.fillStyle = colours.disc;
  pen.fill();
  const visible = project();
  const dots = drawEdges(visible, most);
  drawDots(dots);
  drawMarked();
  pen.beginPath();
  pen.arc(middle.x, middle.y, size + 0.5, 0, 2 * Math.PI);
  pen.strokeStyle = colours.rim;
  pen.lineWidth = 1;
  pen.stroke();
  drawLabels(dots);
  return dots;
}

const WIDTHS = [0.55, 0.9, 1.5], ALPHAS = [0.45, 0.65, 0.9];

/** Edges by branch and width; returns the nodes that have a pixel of their own. */
function drawEdges(visible, limit) {
  const lines = WIDTHS.map(() => ({path: new Path2D(), count: 0})), all = names.length;
  const dots = [], few = limit < visible.length;
  const least = few ? sizeOf(visible, limit) : 1;
  let now = -2, count = 0;
  const flush = each => {
    if (!lines[each].count) return;
    pen.lineWidth = WIDTHS[each];
    pen.globalAlpha = Math.min(1, ALPHAS[each] * colours.opacity);
    pen.stroke(lines[each].path);
    lines[each] = {path: new Path2D(), count: 0};
  };
  for (const i of visible) {
    const p = parent[i], below = end[i] - i;
    if (!free(px[i], py[i])) continue;
    if (few && below < least && ps[i] > 0.5) continue;
    if (ps[i] < SIGHT || below > 1) dots.push(i);
    if (p < 0) continue;
    if (Math.abs(px[i] - px[p]) + Math.abs(py[i] - py[p]) < (few ? 6 : 2)) continue;
    if (branch[i] !== now) {
      lines.forEach((_, k) => flush(k));
      now = branch[i];
      pen.strokeStyle = tone(i);
    }
    const width = below > Math.max(8, all / 60) ? 2 : below > Math.max(1, all / 1500) ? 1 : 0;
    curve(lines[width].path, i, p, edge[i]);
    count++;
    if (++lines[width].count > 200) flush(width);
  }
  lines.forEach((_, k) => flush(k));
  pen.globalAlpha = 1;
  drawn = count;
  return dots;
}

/** The smallest power of two such that no more than `limit` visible nodes have as large a subtree. */
function sizeOf(visible, limit) {
  const counts = new Uint32Array(32);
  for (const i of visible) counts[31 - Math.clz32(end[i] - i)]++;
  let power = 31;
  for (let sum = 0; power >= 0 && (sum += counts[power]) <= limit;) power--;
  return 2 ** (power + 1);
}

function dotRadius(i) {
  const wide = DOT + 0.42 * Math.log2(end[i] - i), small = names.length < 400 ? 1.5 : 0.5;
  return Math.max(0.7, (wide + small) * (1 - 0.75 * ps[i] * ps[i]));
}

function drawDots(dots) {
  let now = -2;
  for (const i of dots) {
    if (branch[i] !== now) [now, pen.fillStyle] = [branch[i], tone(i)];
    const r = dotRadius(i);
    if (r < 1.3) pen.fillRect(px[i] - r, py[i] - r, 2 * r, 2 * r);
    else {
      pen.beginPath();
      pen.arc(px[i], py[i], r, 0, 7);
      pen.fill();
    }
  }
}

/** The chosen node, its path to the root and its neighbours. */
function drawMarked() {
  if (chosen < 0) return;
  const line = new Path2D();
  for (const i of path) {
    const p = parent[i];
    if (p >= 0 && place[i] === frame && place[p] === frame) curve(line, i, p, edge[i]);
  }
  pen.strokeStyle = colours.accent;
  pen.lineWidth = 2.4;
  pen.stroke(line);
  for (const [kind, nodes] of [["near", near], ["path", path]]) {
    for (const i of nodes) {
      if (place[i] !== frame) continue;
      pen.beginPath();
      pen.arc(px[i], py[i], dotRadius(i) + (i === chosen ? 3 : 1.2), 0, 7);
      pen.fillStyle = kind === "path" ? colours.accent : colours.disc;
      pen.fill();
      pen.strokeStyle = kind === "path" ? colours.disc : colours.accent;
      pen.lineWidth = 1.5;
      pen.stroke();
    }
  }
}

/** Names where there is room, the marked first, then those with most below them, then the nearest. */
function drawLabels(dots) {
  const marked = [under, chosen, ...path, ...near].filter(i => i >= 0 && place[i] === frame);
  const worth = new Map(dots.filter(i => ps[i] < 0.97).map(i => [i, Math.log2(1 + end[i] - i) - 9 * ps[i] * ps[i]]));
  const rest = [...worth.keys()].sort((a, b) => worth.get(b) - worth.get(a)).slice(0, 250);
  const boxes = [], most = Math.min(70, size / 6), font = getComputedStyle(document.body).fontFamily;
  let told = 0;
  pen.lineJoin = "round";
  for (const i of new Set([...marked, ...rest])) {
    const strong = i === under || path.has(i), high = strong ? 14 : ps[i] < 0.5 ? 13 : 11.5;
    if (told > most && !strong) break;
    pen.font = `${strong ? 600 : 400} ${high}px ${font}`;
    const text = short(i), wide = pen.measureText(text).width, off = dotRadius(i) + 4;
    const left = px[i] + off + wide < 2 * middle.x - 4 ? px[i] + off : px[i] - off - wide;
    const box = [left - 2, py[i] - high * 0.62, left + wide + 2, py[i] + high * 0.62];
    if (i !== under && boxes.some(b => b[0] < box[2] && box[0] < b[2] && b[1] < box[3] && box[1] < b[3])) continue;
    boxes.push(box);
    told++;
    pen.strokeStyle = colours.halo;
    pen.lineWidth = 3.5;
    pen.strokeText(text, left, py[i] + high * 0.35);
    pen.fillStyle = colours.ink;
    pen.fillText(text, left, py[i] + high * 0.35);
  }
}

/** A name without its parent's, if it begins with it, and a synset's without its number. */
function short(i, most = 34) {
  let text = names[i];
  const above = parent[i] < 0 ? "" : names[parent[i]];
  const rest = above && text.startsWith(above) ? text.slice(above.length).match(/^[\s>/|.:]+(.+)/s) : null;
  if (rest) text = rest[1]; // "A > B" below "A", but not "item 12" below "item 1"
  if (/^\S+\.[nvars]\.\d+$/.test(text)) text = text.replace(/\.[nvars]\.\d+$/, "").replaceAll("_", " ");
  const signs = Array.from(text.slice(0, 4 * most));
  return signs.length > most ? signs.slice(0, most - 1).join("") + "…" : text;
}
