// results.js: runs a search and shows what came of it: results, nothing, or an error. A new search ends the one before.
// Knows the query, the answer and the part of the page below the search box; not the address and not the form.

import { ApiError, search } from "./api.js";
import { card, fillGrid, skeletons } from "./cards.js";
import { commonLength } from "./chips.js";
import { $, el, show } from "./dom.js";
import { showHow } from "./how.js";
import { milliseconds, plural } from "./wording.js";

const PATIENCE = 200; // milliseconds before skeletons take the place of the last results
const TRIES = 3; // when the service is busy
const TITLES = {
  0: "The service cannot be reached",
  400: "The query cannot be used",
  401: "An API key is needed",
  403: "This is not allowed",
  404: "Not found",
  413: "That is too large",
  415: "That is no image the service can read",
  422: "The query cannot be used",
  429: "Too many questions at once",
  503: "The service is busy",
  504: "The service is busy",
};

let running = null;
let counting = null;
let shown = { hits: [] };
let widen = () => {};

/** then: what to do when nothing was found and a setting might be why: (changes to the query) -> */
export function startResults(then) {
  widen = then;
  $("skeleton").replaceChildren(...skeletons(12));
}

export const hits = () => shown.hits;

/** Searches, and shows the answer. */
export async function run(query, attempt = 1) {
  stop();
  const control = new AbortController();
  running = control;
  document.documentElement.dataset.busy = "true";
  show(true, $("answer"));
  show(false, $("error"));
  $("results").setAttribute("aria-busy", "true");
  const waiting = setTimeout(showWaiting, $("results").children.length ? PATIENCE : 0);
  try {
    const answer = await search(query, query.image, control.signal);
    if (running === control) showAnswer(answer, query);
  } catch (error) {
    if (running === control && error.name !== "AbortError") failed(error, query, attempt);
  } finally {
    clearTimeout(waiting);
    if (running === control) finish();
  }
}

/** Ends the search that runs, if one does. */
export function stop() {
  running?.abort();
  clearInterval(counting);
  finish();
}

function finish() {
  running = null;
  delete document.documentElement.dataset.busy;
  $("results").removeAttribute("aria-busy");
  show(false, $("skeleton"));
  show(true, $("results"));
}

function showWaiting() {
  $("status").textContent = "Searching …";
  show(true, $("skeleton"));
  show(false, $("results"), $("none"), $("how-toggle"));
}

export function clear() {
  stop();
  shown = { hits: [] };
  $("results").replaceChildren();
  $("how").replaceChildren();
  $("status").textContent = "";
  show(false, $("answer"), $("error"), $("none"), $("how-toggle"));
}

function showAnswer(answer, query) {
  shown = answer;
  const { hits } = answer;
  const cards = hits.map((hit) =>
    card(hit, { mode: query.mode, shared: sharedLength(hit, hits), written: writtenLength(hit, answer.tree) }),
  );
  fillGrid($("results"), hits, cards);
  $("status").textContent = `${plural(hits.length, "result")} in ${milliseconds(answer.seconds.total)}`;
  show(hits.length > 0, $("how-toggle"));
  show(!hits.length, $("none"));
  showHow(answer, query);
  if (!hits.length) nothing(query, answer);
}

function sharedLength(hit, hits) {
  return Math.max(0, ...hits.map((other) => (other === hit ? 0 : commonLength(hit.codes, other.codes))));
}

/** How many of a hit's codes the decoder wrote: those of the branch it lies under. */
function writtenLength(hit, tree) {
  const under = (tree?.branches ?? []).filter(
    (branch) => commonLength(hit.codes, branch.codes) === branch.codes.length,
  );
  return Math.max(0, ...under.map((branch) => branch.codes.length));
}

function nothing(query, answer) {
  $("how").replaceChildren();
  const offers = [];
  const offer = (label, changes) => offers.push(el("button", { type: "button", onclick: () => widen(changes) }, label));
  if (query.where) offer("Search without the filter", { where: "" });
  if (query.target) offer("Look for anything", { target: "" });
  $("none-why").textContent = !answer.items
    ? "The index is empty."
    : offers.length
      ? "No item satisfies the settings of this search."
      : "The index has nothing to offer for this query.";
  $("none-actions").replaceChildren(...offers);
}

// Errors

function failed(error, query, attempt) {
  const known = error instanceof ApiError;
  const status = known ? error.status : -1;
  if (!known) console.error(error);
  $("status").textContent = "";
  show(false, $("how-toggle"), $("none"));
  $("results").replaceChildren();
  $("how").replaceChildren();
  shown = { hits: [] };
  $("error-title").textContent = TITLES[status] ?? "Something went wrong";
  $("error-message").textContent = known
    ? error.message
    : "The page could not make sense of the answer. Reload the page.";
  const again = () => run(query);
  $("retry").onclick = again;
  $("retry").textContent = "Try again";
  show(![400, 403, 404, 413, 415, 422].includes(status), $("retry"));
  show(true, $("error"));
  if ([429, 503, 504].includes(status) && attempt < TRIES)
    countDown(error.retryAfter ?? attempt, () => run(query, attempt + 1));
}

/** Tries again by itself after so many seconds. */
function countDown(seconds, then) {
  let left = Math.ceil(seconds);
  const tell = () => ($("retry").textContent = `Trying again in ${left} s`);
  tell();
  counting = setInterval(() => {
    left -= 1;
    if (left > 0) return tell();
    clearInterval(counting);
    then();
  }, 1000);
}
