// results.js: runs a search and shows its results or its error. A new search cancels the previous one.

import { ApiError, search } from "./api.js";
import { card, fillGrid, skeletons } from "./cards.js";
import { commonLength } from "./chips.js";
import { $, el, show } from "./dom.js";
import { showHow } from "./how.js";
import { learnNames } from "./names.js";
import { milliseconds, plural } from "./wording.js";

const SKELETON_DELAY = 200; // milliseconds before skeletons replace the previous results
const MAX_ATTEMPTS = 3; // if the service is busy
const TITLES = {
  0: "The service cannot be reached",
  400: "The query is not valid",
  401: "An API key is needed",
  403: "This is not allowed",
  404: "Not found",
  413: "The query is too large",
  415: "The image cannot be read",
  422: "The query is not valid",
  429: "Too many requests",
  503: "The service is busy",
  504: "The service is busy",
};

let running = null; // AbortController of the running search
let countdown = null;
let shown = { hits: [] };
let onWiden = () => {};

/** widen: called with changes to the query, to search with a wider filter or target. */
export function startResults(widen) {
  onWiden = widen;
  $("skeleton").replaceChildren(...skeletons(12));
}

export const hits = () => shown.hits;

/**
 * Why a hit was found: for each of its codes that counts, the prefix, whether the model generated it, and how many other
 * results share it. Codes after the last one that is generated or shared are left out.
 */
export function reasons(hit, mode) {
  const generated = generatedLength(hit, shown.tree, mode);
  const length = Math.max(generated, sharedLength(hit, shown.hits));
  return hit.codes.slice(0, length).map((_, level) => {
    const prefix = hit.codes.slice(0, level + 1);
    const sharing = shown.hits.filter((one) => one !== hit && commonLength(one.codes, prefix) === prefix.length);
    return { prefix, generated: level < generated, sharing: sharing.length };
  });
}

/** Runs a search and shows its results. */
export async function run(query, attempt = 1) {
  stop();
  const control = new AbortController();
  running = control;
  document.documentElement.dataset.busy = "true";
  show(true, $("answer"));
  show(false, $("error"));
  $("results").setAttribute("aria-busy", "true");
  const waiting = setTimeout(showSkeletons, $("results").children.length ? SKELETON_DELAY : 0);
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

/** Cancels the running search. */
export function stop() {
  running?.abort();
  clearInterval(countdown);
  finish();
}

function finish() {
  running = null;
  delete document.documentElement.dataset.busy;
  $("results").removeAttribute("aria-busy");
  show(false, $("skeleton"));
  show(true, $("results"));
}

function showSkeletons() {
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
  learnNames(answer.names);
  const { hits } = answer;
  const cards = hits.map((hit) =>
    card(hit, { mode: query.mode, shared: sharedLength(hit, hits), generated: generatedLength(hit, answer.tree, query.mode) }),
  );
  fillGrid($("results"), hits, cards);
  $("status").textContent = `${plural(hits.length, "result")} in ${milliseconds(answer.seconds.total)}`;
  show(hits.length > 0, $("how-toggle"));
  show(!hits.length, $("none"));
  showHow(answer, query);
  if (!hits.length) showNothing(query, answer);
}

function sharedLength(hit, hits) {
  return Math.max(0, ...hits.map((other) => (other === hit ? 0 : commonLength(hit.codes, other.codes))));
}

/** Number of a hit's codes that the model generated: the length of the beam it lies under; in mode "fast" the modality. */
function generatedLength(hit, tree, mode) {
  const under = (tree?.branches ?? []).filter(
    (branch) => commonLength(hit.codes, branch.codes) === branch.codes.length,
  );
  const length = Math.max(0, ...under.map((branch) => branch.codes.length));
  return mode === "fast" ? Math.min(1, length) : length;
}

function showNothing(query, answer) {
  $("how").replaceChildren();
  const offers = [];
  const offer = (label, changes) => offers.push(el("button", { type: "button", onclick: () => onWiden(changes) }, label));
  if (query.branch) offer("Search the whole index", { branch: "" });
  if (query.where) offer("Search without the filter", { where: "" });
  if (query.target) offer("Search all modalities", { target: "" });
  $("none-why").textContent = !answer.items
    ? "The index is empty."
    : offers.length
      ? "No item matches the filter, the branch or the target."
      : "The index has no items for this query.";
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
    : "The page cannot read the response. Reload the page.";
  const again = () => run(query);
  $("retry").onclick = again;
  $("retry").textContent = "Try again";
  show(![400, 403, 404, 413, 415, 422].includes(status), $("retry"));
  show(true, $("error"));
  if ([429, 503, 504].includes(status) && attempt < MAX_ATTEMPTS)
    countDown(error.retryAfter ?? attempt, () => run(query, attempt + 1));
}

/** Shows a countdown and then tries again. */
function countDown(seconds, then) {
  let left = Math.ceil(seconds);
  const update = () => ($("retry").textContent = `Trying again in ${left} s`);
  update();
  countdown = setInterval(() => {
    left -= 1;
    if (left > 0) return update();
    clearInterval(countdown);
    then();
  }, 1000);
}
