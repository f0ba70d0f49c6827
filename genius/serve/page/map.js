// map.js: a treemap of the code tree. Areas are numbers of items; a cell leads to the next level.

import { codes as fetchCodes } from "./api.js";
import { image } from "./cards.js";
import { $, el, show } from "./dom.js";
import { learnNames, codeLabel } from "./names.js";
import { codesAddress } from "./state.js";
import { count, plural } from "./wording.js";

const CHILDREN = 300;
const MIN_SIDE = 30; // pixels; smaller cells cannot be hit
const IMAGE_SIDE = 64; // pixels; smaller cells show no image
const NAME_SIDE = 48; // pixels; narrower cells show no name
const HEAD = 26; // pixels of the heading of a group
const GAP = 2;

let groups = []; // [{codes, items, children: [{code, items, example}], rest}]
let width = 0;

export function startMap() {
  new ResizeObserver(() => {
    if (!$("codes-map").hidden && $("codes-map").clientWidth !== width) draw();
  }).observe($("codes-map"));
}

/** Shows the map of a page of the code tree. At the root, each modality is a group of its own. */
export async function showMap(page, codes, signal) {
  show(true, $("codes-map"));
  if (codes.length) {
    groups = [group(codes, page)];
  } else {
    const pages = await Promise.all(
      page.children.map((child) => fetchCodes(String(child.code), { limit: 1, children: CHILDREN }, signal)),
    );
    for (const one of pages) learnNames(one.names);
    groups = pages.map((one, i) => group([String(page.children[i].code)], one));
  }
  draw();
}

export function hideMap() {
  show(false, $("codes-map"));
  groups = [];
}

/** Draws the map again, because names have come. */
export const redrawMap = () => !$("codes-map").hidden && draw();

function group(codes, page) {
  const shown = page.children.reduce((sum, child) => sum + child.items, 0);
  return { codes, items: page.total, children: page.children, rest: page.total - shown };
}

function draw() {
  const box = $("codes-map");
  width = box.clientWidth;
  const height = Math.max(420, Math.min(720, Math.round(innerHeight * 0.72)));
  box.style.setProperty("--height", `${height}px`);
  const cells = [];
  const several = groups.length > 1;
  const frames = squarify(groups.map((one) => ({ ...one, weight: Math.max(one.items, 1) })), 0, 0, width, height);
  for (const frame of frames) {
    const head = several ? HEAD : 0;
    if (several) cells.push(heading(frame));
    const room = [frame.x, frame.y + head, frame.w, Math.max(0, frame.h - head)];
    cells.push(...fit(frame, ...room).map((cell) => drawCell(frame.codes, cell)));
  }
  box.replaceChildren(...cells);
}

/** The cells of a group: as many codes as are large enough to be hit, and one cell for all others. */
function fit(one, x, y, w, h) {
  for (let shown = one.children.length; shown >= 0; shown -= Math.max(1, Math.floor(shown / 8))) {
    const rest = one.children.slice(shown).reduce((sum, child) => sum + child.items, one.rest);
    const parts = one.children.slice(0, shown).map((child) => ({ ...child, weight: child.items }));
    if (rest > 0) parts.push({ code: null, items: rest, weight: Math.max(rest, 1) });
    const cells = squarify(parts, x, y, w, h);
    if (cells.every((cell) => cell.w >= MIN_SIDE && cell.h >= MIN_SIDE)) return cells;
    if (shown === 0) return cells.length ? [{ ...cells[0], x, y, w: Math.max(w, MIN_SIDE), h: Math.max(h, MIN_SIDE) }] : [];
  }
  return [];
}

/** Squarified treemap: places parts with weights, largest first, in rows along the shorter side. */
export function squarify(parts, x, y, w, h) {
  const sorted = parts.filter((part) => part.weight > 0).sort((first, second) => second.weight - first.weight);
  const total = sorted.reduce((sum, part) => sum + part.weight, 0);
  const scale = total ? (w * h) / total : 0;
  const placed = [];
  let start = 0;
  while (start < sorted.length && w > 0 && h > 0) {
    const side = Math.min(w, h);
    let end = start + 1;
    let area = sorted[start].weight * scale;
    let worst = ratio(sorted, start, end, area, side, scale);
    while (end < sorted.length) {
      const next = area + sorted[end].weight * scale;
      const then = ratio(sorted, start, end + 1, next, side, scale);
      if (then > worst) break;
      [area, worst, end] = [next, then, end + 1];
    }
    const depth = area / side;
    let along = 0;
    for (const part of sorted.slice(start, end)) {
      const length = (part.weight * scale) / depth;
      placed.push(
        w >= h ? { ...part, x, y: y + along, w: depth, h: length } : { ...part, x: x + along, y, w: length, h: depth },
      );
      along += length;
    }
    if (w >= h) [x, w] = [x + depth, w - depth];
    else [y, h] = [y + depth, h - depth];
    start = end;
  }
  return placed;
}

/** The worst ratio of the sides of the parts in a row of this area. */
function ratio(parts, start, end, area, side, scale) {
  const depth = area / side;
  const lengths = [parts[start], parts[end - 1]].map((part) => (part.weight * scale) / depth);
  return Math.max(...lengths.flatMap((length) => [length / depth, depth / length]));
}

const place = ({ x, y, w, h }) => ({ x: `${x}px`, y: `${y}px`, w: `${Math.max(0, w - GAP)}px`, h: `${Math.max(0, h - GAP)}px` });

function heading(frame) {
  return el(
    "a",
    { class: "map-head", href: codesAddress(frame.codes, 0, true), vars: place({ ...frame, h: HEAD }) },
    `${codeLabel(frame.codes)} · ${count(frame.items)}`,
  );
}

function drawCell(prefix, cell) {
  if (cell.code === null) {
    return el(
      "a",
      { class: "map-cell rest", href: codesAddress(prefix), vars: place(cell), "aria-label": `Other codes, ${plural(cell.items, "item")}` },
      el("span", { class: "map-name" }, `+ ${count(cell.items)}`),
    );
  }
  const codes = [...prefix, String(cell.code)];
  const large = cell.w >= IMAGE_SIDE && cell.h >= IMAGE_SIDE + 20;
  const picture = large && cell.example?.image_url ? image(cell.example, 128, { alt: "", fallback: null }) : null;
  const label = codeLabel(codes);
  return el(
    "a",
    {
      class: "map-cell",
      href: codesAddress(codes, 0, true),
      title: `${label}: ${plural(cell.items, "item")}`,
      "aria-label": `${label}, ${plural(cell.items, "item")}`,
      data: { cell: codes.join("-") },
      vars: { ...place(cell), level: codes.length - 1 },
    },
    picture,
    cell.w >= NAME_SIDE ? el("span", { class: "map-name" }, label) : null,
    cell.w >= NAME_SIDE && cell.h >= 60 ? el("small", {}, count(cell.items)) : null,
  );
}
