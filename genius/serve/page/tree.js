// tree.js: the beams as a tree. `buildTree` merges them into one small tree, `drawTree` draws it, `listTree` shows it as
// nested lists.

import { fillImage } from "./api.js";
import { commonLength } from "./chips.js";
import { el, svg } from "./dom.js";
import { codeLabel, nameOf, pathLabel, shortLabel } from "./names.js";
import { codesAddress } from "./state.js";
import { logProbability, percent, plural, prefixName, title } from "./wording.js";

const MAX_LEAVES = 18;
const MAX_NODES = 60;
const WIDTH = 392;
const ROW = 25; // height of a row
const THUMBS = 2; // images next to a leaf

/**
 * Merges beams into a tree of nodes {codes, label, children, mass, items, best, hits, parent}.
 * mass: share of the node in the probability of all beams; items: number of items under its beams; best: highest
 * log-probability; hits: results below it. If there are too many beams to draw, those with results come first, and
 * `omitted` counts the others.
 */
export function buildTree(found, hits) {
  const best = Math.max(...found.map((branch) => branch.logprob));
  const weight = ({ logprob }) => Math.exp(logprob - best); // relative to the best, against underflow
  const branches = found.map((branch) => ({ ...branch, weight: weight(branch) }));
  const total = branches.reduce((sum, branch) => sum + branch.weight, 0);
  const hasHits = (branch) => hits.some((hit) => commonLength(hit.codes, branch.codes) === branch.codes.length);
  const ordered = [...branches.filter(hasHits), ...branches.filter((branch) => !hasHits(branch))];
  let drawn = Math.min(ordered.length, MAX_LEAVES);
  let root = merge(ordered.slice(0, drawn), branches, hits, total);
  while (drawn > 1 && size(root) > MAX_NODES) {
    drawn -= 1;
    root = merge(ordered.slice(0, drawn), branches, hits, total);
  }
  return { root, omitted: branches.length - drawn };
}

function merge(drawn, all, hits, total) {
  const root = node([], null);
  for (const branch of drawn) {
    let at = root;
    branch.codes.forEach((code, level) => {
      let child = at.children.find((one) => one.codes[level] === code);
      if (!child) {
        child = node(branch.codes.slice(0, level + 1), at);
        at.children.push(child);
      }
      at = child;
    });
    at.end = true;
  }
  measure(root, all, hits, total);
  return collapse(root);
}

const node = (codes, parent) => ({
  codes,
  parent,
  children: [],
  end: false,
  mass: 0,
  items: 0,
  best: -Infinity,
  hits: [],
});

function measure(at, branches, hits, total) {
  const under = branches.filter((branch) => commonLength(branch.codes, at.codes) === at.codes.length);
  at.mass = under.reduce((sum, branch) => sum + branch.weight, 0) / total;
  at.items = under.reduce((sum, branch) => sum + branch.items, 0);
  at.best = Math.max(...under.map((branch) => branch.logprob));
  at.hits = hits.filter((hit) => commonLength(hit.codes, at.codes) === at.codes.length);
  for (const child of at.children) measure(child, under, at.hits, total);
  at.children.sort((first, second) => second.mass - first.mass);
}

/** Joins chains without a fork into one node, except for the modality at the first level. */
function collapse(at) {
  at.children = at.children.map((child) => {
    let last = child;
    while (last.codes.length > 1 && last.children.length === 1 && !last.end) last = last.children[0];
    last.parent = at;
    last.label = labels(last.codes, at.codes.length);
    return collapse(last);
  });
  return at;
}

/** The labels of the codes from a level on: the name of the last code that has one, or all numbers. */
function labels(codes, from) {
  for (let length = codes.length; length > Math.max(1, from); length -= 1) {
    const prefix = codes.slice(0, length);
    if (nameOf(prefix, { mixed: false })) return [shortLabel(prefix)];
  }
  return codes.slice(from).map((code, i) => (from + i === 0 ? codeLabel([code]) : `${code}`));
}

const size = (at) => at.children.reduce((sum, child) => sum + size(child), 1);
const depth = (at) => at.children.reduce((most, child) => Math.max(most, depth(child) + 1), 0);

function short(label) {
  return label.length > 2 ? `${label[0]}·…` : label.join("·");
}

const facts = (at) => `${plural(at.items, "item")}, log-probability ${logProbability(at.best)}`;

export function describe(at) {
  if (!at.codes.length)
    return `The query. ${plural(at.items, "item")} were found under these prefixes.`;
  const results = at.hits.length ? `, ${plural(at.hits.length, "result")} here` : "";
  return `${prefixName(at.codes)}${named(at.codes)}: ${facts(at)} (${percent(at.mass)} of all beams)${results}.`;
}

/** The names of a prefix, in brackets, or "". */
function named(codes) {
  const path = pathLabel(codes);
  return path.includes(" › ") ? ` (${path})` : "";
}

/** An SVG of the tree. onPoint: called with the description of the node that is pointed at. */
export function drawTree({ root }, onPoint) {
  const columns = Math.max(1, depth(root));
  const names = Math.max(
    ...[...allNodes(root)].map((at) => (at.children.length || !at.label ? 0 : short(at.label).length)),
  );
  const room = 36 + names * 6.4 + 22 * THUMBS; // on the right, for labels and images of leaves
  const step = (WIDTH - room) / columns;
  let row = 0;
  const place = (at, column) => {
    at.x = 10 + column * step;
    for (const child of at.children) place(child, column + 1);
    at.y = at.children.length ? (at.children[0].y + at.children.at(-1).y) / 2 : 16 + ROW * row++;
  };
  place(root, 0);
  const height = 16 + ROW * row;
  const edges = svg("g", { class: "edges" });
  const nodes = svg("g", { class: "nodes" });
  const image = svg(
    "svg",
    {
      id: "tree",
      viewBox: `0 0 ${WIDTH} ${height}`,
      role: "group",
      "aria-label": "The beams as a tree. Arrow keys move, Enter opens a code. A list with the same content follows.",
      vars: { height: `${height}px` },
    },
    edges,
    nodes,
  );
  for (const at of allNodes(root)) {
    if (at.parent) edges.append(edge(at));
    nodes.append(drawNode(at, onPoint));
  }
  const first = nodes.firstElementChild;
  first.setAttribute("tabindex", "0");
  image.addEventListener("keydown", (event) => move(event, nodes));
  return image;
}

function* allNodes(at) {
  yield at;
  for (const child of at.children) yield* allNodes(child);
}

const resultClass = (at) => (at.hits.length ? " has-results" : "");
const radius = (at) => 3.5 + 5.5 * Math.sqrt(Math.min(1, at.mass));

function edge(at) {
  const { x, y } = at.parent;
  const middle = (x + at.x) / 2;
  const path = `M${x} ${y}C${middle} ${y} ${middle} ${at.y} ${at.x} ${at.y}`;
  return svg("path", {
    class: `edge${resultClass(at)}`,
    d: path,
    "stroke-width": (1 + 3 * Math.sqrt(at.mass)).toFixed(2),
    data: { prefix: at.codes.join("-") },
  });
}

function drawNode(at, onPoint) {
  const prefix = at.codes.join("-");
  const level = at.codes.length - 1;
  const r = radius(at);
  const leaf = !at.children.length;
  const data = { node: prefix, items: at.items, logprob: at.best };
  if (prefix) data.prefix = prefix;
  const group = svg(
    "a",
    {
      class: `node${resultClass(at)}${leaf ? " leaf" : ""}`,
      href: codesAddress(at.codes),
      tabindex: "-1",
      "aria-label": describe(at),
      data,
      vars: { level: Math.max(0, level) },
    },
    leaf && svg("rect", { class: "row-target", x: at.x, y: at.y - ROW / 2, width: WIDTH - at.x, height: ROW }),
    svg("circle", { class: "target", cx: at.x, cy: at.y, r: Math.max(8, r + 4) }),
    svg("circle", { class: "dot", cx: at.x, cy: at.y, r: r.toFixed(2) }),
  );
  group.append(label(at, leaf, r));
  if (leaf) group.append(...thumbs(at));
  const point = () => onPoint(describe(at));
  group.addEventListener("pointerenter", point);
  group.addEventListener("focus", point);
  group.tree = at;
  return group;
}

function label(at, leaf, r) {
  if (!at.parent) return svg("text", { x: 0, y: at.y - r - 5 }, "Query");
  const place = leaf ? { x: at.x + r + 4, y: at.y + 3.5 } : { x: at.x, y: at.y - r - 4, "text-anchor": "middle" };
  return svg("text", place, short(at.label));
}

function thumbs(at) {
  const shown = at.hits.filter((hit) => hit.image_url).slice(0, THUMBS);
  const start = WIDTH - 22 * THUMBS;
  return shown.map((hit, i) => {
    const image = svg(
      "image",
      { x: start + 22 * i, y: at.y - 10, width: 20, height: 20, "aria-hidden": "true" },
      svg("title", {}, title(hit)),
    );
    image.addEventListener("error", () => image.remove());
    return fillImage(image, hit.image_url, 64);
  });
}

function move(event, nodes) {
  const here = event.target.tree;
  const siblings = here?.parent?.children ?? [];
  const to = {
    ArrowRight: () => here.children[0],
    ArrowLeft: () => here.parent,
    ArrowDown: () => siblings[siblings.indexOf(here) + 1],
    ArrowUp: () => siblings[siblings.indexOf(here) - 1],
  }[event.key]?.();
  if (!to) return;
  event.preventDefault();
  const all = [...nodes.children];
  for (const one of all) one.setAttribute("tabindex", one.tree === to ? "0" : "-1");
  all.find((one) => one.tree === to).focus();
}

/** The tree as nested lists. */
export function listTree({ root, omitted }) {
  const box = el("ul", { id: "tree-list" }, root.children.map(entry));
  if (omitted > 0) box.append(el("li", {}, `${plural(omitted, "more beam")} not shown`));
  return box;
}

function entry(at) {
  const results = at.hits.length ? `, ${plural(at.hits.length, "result")}` : "";
  return el(
    "li",
    {},
    el("a", { href: codesAddress(at.codes), data: { prefix: at.codes.join("-") } }, `${prefixName(at.codes)}${named(at.codes)}`),
    ` ${facts(at)}${results}`,
    at.children.length ? el("ul", {}, at.children.map(entry)) : null,
  );
}
