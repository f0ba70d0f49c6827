// state.js: the state of the page in its address. The query is in the search part, the view (results, codes or a list of
// items) in the hash. Image files stay in memory while the page is open; the history holds their key.

export const DEFAULTS = Object.freeze({
  q: "",
  like: "",
  target: "",
  mode: "fast",
  k: 24,
  beam: 50,
  budget: "", // follows the size of the index
  where: "",
  branch: "", // codes joined by "-": search only below them
  instruction: "",
  index: "",
});
const NUMBERS = ["k", "beam", "budget"];
const CHOICES = { target: ["", "image", "text", "image,text"], mode: ["fast", "rerank", "generate"] };

const images = new Map(); // key -> file
const session = Date.now(); // keys from before a reload must not match new images
let next = 1;
let changed = () => {};

/** Calls `then` whenever the address changes. */
export function onChange(then) {
  changed = then;
  addEventListener("popstate", then);
}

/** The key of an image file. The same file keeps its key. */
function imageKey(file) {
  for (const [key, kept] of images) if (kept === file) return key;
  const key = `${session}-${next++}`;
  images.set(key, file);
  return key;
}

/** The query in the address. image: a file or null; lost: whether its image was lost by a reload. */
export function readQuery() {
  const parameters = new URLSearchParams(location.search);
  const query = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) {
    const value = parameters.get(name);
    if (!value) continue;
    if (NUMBERS.includes(name)) query[name] = Math.max(1, Math.floor(Number(value))) || DEFAULTS[name];
    else if (!CHOICES[name] || CHOICES[name].includes(value)) query[name] = value;
  }
  const key = history.state?.image ?? null;
  query.image = images.get(key) ?? null;
  query.lost = key !== null && query.image === null;
  return query;
}

/** Whether the query has neither words nor an image nor an item. */
export const isEmpty = (query) => !query.q && !query.like && !query.image;

/** A string that is equal for equal queries. */
export const identity = (query) =>
  JSON.stringify([addressOf(query), query.image ? imageKey(query.image) : null]);

function addressOf(query) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(DEFAULTS)) {
    if (query[name] !== value) parameters.set(name, query[name]);
  }
  const text = parameters.toString();
  return `${location.pathname}${text ? `?${text}` : ""}`;
}

/** Shows a query in the search view. replace: replace the current history entry. */
export function goToQuery(query, { replace = false } = {}) {
  const state = { image: query.image ? imageKey(query.image) : null };
  history[replace || history.state?.overlay ? "replaceState" : "pushState"](state, "", addressOf(query));
  changed();
}

/** The view: {name: "search"}, {name: "codes", pattern, offset, map} or {name: "items", ids}. */
export function readView() {
  const [path, rest = ""] = location.hash.replace(/^#/, "").split("?");
  const parameters = new URLSearchParams(rest);
  const codes = path.match(/^\/codes(?:\/([\d*-]*))?$/);
  if (codes) {
    const offset = Number(parameters.get("offset")) || 0;
    return { name: "codes", pattern: codes[1] ?? "", offset, map: parameters.has("map") };
  }
  if (path === "/items") return { name: "items", ids: parameters.getAll("id") };
  return { name: "search" };
}

/** map: show the codes as a map. */
export function codesAddress(codes, offset = 0, map = false) {
  const path = codes.length ? `#/codes/${codes.join("-")}` : "#/codes";
  if (map) return `${path}?map=1`;
  return offset ? `${path}?offset=${offset}` : path;
}

export function itemsAddress(ids) {
  return `#/items?${new URLSearchParams(ids.map((id) => ["id", id]))}`;
}

/** Shows a view and keeps the query. */
export function goToView(hash) {
  const state = { image: history.state?.image ?? null };
  history[history.state?.overlay ? "replaceState" : "pushState"](
    state,
    "",
    `${location.pathname}${location.search}${hash}`,
  );
  changed();
}

export const leaveView = () => goToView("");

// Dialogs are history entries too, so that "back" closes them on a phone.

export function openOverlay(id) {
  const state = { ...history.state, overlay: id };
  history[history.state?.overlay ? "replaceState" : "pushState"](state, "", location.href);
}

/** Undoes `openOverlay`, if it is still the last entry. */
export function closeOverlay() {
  if (history.state?.overlay) history.back();
}

export const overlay = () => history.state?.overlay ?? null;
