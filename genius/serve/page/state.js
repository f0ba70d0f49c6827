// state.js: what the address of the page says, and how it changes. The query is in the address's search part, the view
// (search, a code, a list of items) in its hash. Images cannot be in an address: they are kept here by number for as
// long as the page is open, and the history holds the number. Knows no element.

export const DEFAULTS = Object.freeze({
  q: "",
  like: "",
  target: "",
  mode: "fast",
  k: 24,
  beam: 50,
  budget: 1000,
  where: "",
  instruction: "",
  index: "",
});
const NUMBERS = ["k", "beam", "budget"];
const CHOICES = { target: ["", "image", "text", "image,text"], mode: ["fast", "rerank", "generate"] };

const images = new Map();
const session = Date.now(); // numbers from before a reload must not mean an image of now
let next = 1;
let changed = () => {};

/** Calls `then` whenever the address has changed. */
export function onChange(then) {
  changed = then;
  addEventListener("popstate", then);
}

/** An image's number; the same image keeps its number. */
export function keepImage(file) {
  for (const [number, kept] of images) if (kept === file) return number;
  const number = `${session}-${next++}`;
  images.set(number, file);
  return number;
}

/** The query in the address, with its image (a file) or null. lost: it had an image before the page was reloaded. */
export function readQuery() {
  const parameters = new URLSearchParams(location.search);
  const query = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) {
    const value = parameters.get(name);
    if (value === null) continue;
    if (NUMBERS.includes(name)) query[name] = Math.max(1, Math.floor(Number(value))) || DEFAULTS[name];
    else if (!CHOICES[name] || CHOICES[name].includes(value)) query[name] = value;
  }
  const number = history.state?.image ?? null;
  query.image = images.get(number) ?? null;
  query.lost = number !== null && query.image === null;
  return query;
}

/** Whether there is anything to search with. */
export const isEmpty = (query) => !query.q && !query.like && !query.image;

/** What makes a query differ from another. */
export const identity = (query) =>
  JSON.stringify([addressOf(query), query.image ? keepImage(query.image) : null]);

function addressOf(query) {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(DEFAULTS)) {
    if (query[name] !== value) parameters.set(name, query[name]);
  }
  const text = parameters.toString();
  return `${location.pathname}${text ? `?${text}` : ""}`;
}

/** Goes to a query, in the search view. replace: in place of where the page is now. */
export function goToQuery(query, { replace = false } = {}) {
  const state = { image: query.image ? keepImage(query.image) : null };
  history[replace || history.state?.overlay ? "replaceState" : "pushState"](state, "", addressOf(query));
  changed();
}

/** The view: {name: "search"}, {name: "codes", pattern, offset} or {name: "items", ids}. */
export function readView() {
  const [path, rest = ""] = location.hash.replace(/^#/, "").split("?");
  const parameters = new URLSearchParams(rest);
  const codes = path.match(/^\/codes(?:\/([\d*-]*))?$/);
  if (codes) return { name: "codes", pattern: codes[1] ?? "", offset: Number(parameters.get("offset")) || 0 };
  if (path === "/items") return { name: "items", ids: parameters.getAll("id") };
  return { name: "search" };
}

export function codesAddress(codes, offset = 0) {
  const path = codes.length ? `#/codes/${codes.join("-")}` : "#/codes";
  return offset ? `${path}?offset=${offset}` : path;
}

export function itemsAddress(ids) {
  return `#/items?${new URLSearchParams(ids.map((id) => ["id", id]))}`;
}

/** Goes to a view; the query stays. */
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

// Dialogs are steps of the history too, so that "back" closes them on a phone.

export function openOverlay(id) {
  const state = { ...history.state, overlay: id };
  history[history.state?.overlay ? "replaceState" : "pushState"](state, "", location.href);
}

/** Undoes `openOverlay`, if it is still the last step. */
export function closeOverlay() {
  if (history.state?.overlay) history.back();
}

export const overlay = () => history.state?.overlay ?? null;
