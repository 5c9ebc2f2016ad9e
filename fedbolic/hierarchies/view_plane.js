"use strict";
// The hyperbolic plane in polar coordinates about an origin. A place is {hi, lo, rest, r, tilt}: its
// direction in 64-bit turns (two halves) plus `rest` radians beyond them, its radius, and the angle
// on the screen of the direction away from the origin. Coordinates in the disc resolve some 36 units
// from its centre; differences of turns are exact, so a view about a place at radius 64 is, too.

const TURN = 2 * Math.PI / 2 ** 64;

/** Radians from a place's direction to the turn (hi, lo). The difference of turns is exact. */
function swing(here, hi, lo) {
  return (((hi - here.hi) | 0) * 2 ** 32 + (lo - here.lo)) * TURN - here.rest;
}

/** What `look` needs of a place, computed once a frame. */
function eyeAt(here) {
  return {...here, shrink: Math.exp(-here.r), sinh: Math.sinh(here.r), cosh: Math.cosh(here.r)};
}

const seen = {x: 0, y: 0, s: 0};

/**
 * A node as seen from a place: `seen` becomes sinh(d) (cos, sin) of its direction, from the direction
 * away from the origin, and s = sinh(d / 2)^2, with the distance d. `grow` is exp(r), `rise` sinh(r).
 *
 * With the angle a between them and the radius q of the place: s = sinh((r - q) / 2)^2 +
 * sinh(q) sinh(r) sin(a / 2)^2, x = sinh(r - q) - 2 sin(a / 2)^2 sinh(r) cosh(q), y = sin(a) sinh(r).
 */
function look(eye, hi, lo, grow, rise) {
  const half = swing(eye, hi, lo) / 2, sin = Math.sin(half), ratio = grow * eye.shrink;
  const gap = ratio - 1, turned = sin * sin * rise;
  seen.s = gap * gap / (4 * ratio) + turned * eye.sinh;
  seen.x = (ratio - 1 / ratio) / 2 - 2 * turned * eye.cosh;
  seen.y = 2 * sin * Math.cos(half) * rise;
}

/** The distance of which `s` is sinh(d / 2)^2. */
function distanceOf(s) {
  return 2 * Math.asinh(Math.sqrt(s));
}

/** Direction and distance of a node from a place; the direction as in `look`, of length 1. */
function bearing(here, hi, lo, r) {
  look(eyeAt(here), hi, lo, Math.exp(r), Math.sinh(r));
  const length = Math.hypot(seen.x, seen.y);
  const [x, y] = length ? [seen.x / length, seen.y / length] : [1, 0];
  return {x, y, d: distanceOf(seen.s)};
}

/**
 * The place at distance t from another in the direction (x, y), which stands at the same angle on
 * the screen there as here: a translation along the geodesic.
 */
function step(here, x, y, t) {
  const {r, tilt} = here, h = x > 0 ? (1 + x) / 2 : y * y / (2 * (1 - x)); // cos(angle / 2)^2
  const [sr, st, gap] = [Math.sinh(r), Math.sinh(t), Math.sinh((r - t) / 2)], away = Math.sinh(r - t);
  const turned = Math.atan2(y * st, away + 2 * Math.cosh(r) * st * h);
  const onward = Math.atan2(y * sr, -away + 2 * sr * Math.cosh(t) * h);
  const angle = tilt + Math.atan2(y, x);
  const place = {...here, rest: here.rest + turned, tilt: angle - onward};
  return settled({...place, r: distanceOf(gap * gap + sr * st * h)});
}

/** The same place with less than a turn's last bit in `rest`. */
function settled(here) {
  const ticks = Math.round(here.rest / TURN);
  const turn = (BigInt(here.hi) << 32n) + BigInt(here.lo) + BigInt(ticks);
  const rest = here.rest - ticks * TURN;
  return {...here, hi: Number(turn >> 32n & 0xffffffffn), lo: Number(turn & 0xffffffffn), rest};
}

/** A node's place on the geodesic's end, the screen turned as along the geodesic from `here`. */
function arrival(here, hi, lo, r) {
  const to = bearing(here, hi, lo, r), there = {hi, lo, rest: 0, r, tilt: 0};
  if (to.d === 0) return {place: {...there, tilt: here.tilt}, to, back: to, angle: 0};
  const back = from(there, here), angle = here.tilt + Math.atan2(to.y, to.x);
  return {place: {...there, tilt: angle + Math.PI - Math.atan2(back.y, back.x)}, to, back, angle};
}

/** Direction and distance of a place, which may lie between turns, from a node. */
function from(there, here) {
  const shifted = {...there, rest: there.rest - here.rest};
  return bearing(shifted, here.hi, here.lo, here.r);
}

/**
 * The place at a share of the way from one to a node, computed from the end that lies outward of it:
 * the geodesic is nearest to the origin after about (d + r of its start - r of its end) / 2.
 */
function along(here, way, share) {
  const {place, to, back} = way, far = share * to.d;
  if (to.d === 0) return place;
  return 2 * far < to.d + here.r - place.r ? step(here, to.x, to.y, far)
    : step(place, back.x, back.y, to.d - far);
}
