// main.js: connects the modules. Every action changes the address, and `render` shows what the address says.

import { addIsOpen, closeAdd, openAdd, startAdd } from "./add.js";
import { indexes as fetchIndexes, onKeyNeeded, useIndex } from "./api.js";
import { moveInGrid } from "./cards.js";
import { startHighlight } from "./chips.js";
import { codeItems, showCodes, startCodes } from "./codes.js";
import { $, show, toast } from "./dom.js";
import { isImage, onFiles } from "./files.js";
import * as form from "./form.js";
import { forgetHome, showHome } from "./home.js";
import { startHow } from "./how.js";
import { closeItem, openItem, startItem } from "./item.js";
import { askForKey } from "./key.js";
import { listItems, showList, startList } from "./list.js";
import { forgetNames } from "./names.js";
import * as results from "./results.js";
import {
  DEFAULTS,
  goToQuery,
  goToView,
  identity,
  isEmpty,
  itemsAddress,
  onChange,
  overlay,
  readQuery,
  readView,
} from "./state.js";
import { count } from "./wording.js";

const POLL = 1500; // milliseconds between requests while an index is being loaded

const page = document.documentElement;

let indexes = [];
let shownIndex = null; // name of the index in the page's header
let namedIndex = null; // name of the index whose codes have names
let formQuery = null; // identity of the query in the form
let shownQuery = null; // identity of the query whose results are shown
let shownView = ""; // the view that is shown, as JSON
let lastPosition = { element: null, scroll: 0 }; // focus and scroll position of the results

const current = (query = readQuery()) => indexes.find((index) => index.name === query.index) ?? indexes[0] ?? null;

function start() {
  onKeyNeeded(askForKey);
  form.startForm((query) => search(query));
  results.startResults((changes) => search({ ...readQuery(), ...changes }));
  startHow();
  startHighlight();
  startCodes(searchInside);
  startList();
  startItem({ similar, compose, deleted, reasons: (hit) => results.reasons(hit, readQuery().mode) });
  startAdd({ done: reloadIndex, show: (ids) => goToView(itemsAddress(ids)) });
  onFiles(useFiles, $("dropzone"));
  document.addEventListener("click", click);
  document.addEventListener("keydown", keys);
  document.addEventListener("keydown", moveInGrid);
  onChange(render);
  if (overlay()) history.replaceState({ ...history.state, overlay: null }, "");
  if (readQuery().lost) toast("The image of this search was lost by the reload. Choose it again.");
  loadIndexes();
  render();
  if (!$("key-dialog").open) $("q").focus();
}

// Views

function render() {
  if (!overlay()) {
    closeItem();
    closeAdd();
  }
  const query = readQuery();
  useIndex(query.index);
  if (query.index !== namedIndex) {
    namedIndex = query.index;
    forgetNames();
  }
  const id = identity(query);
  if (id !== formQuery) form.write(query); // otherwise keep what the user has entered since
  formQuery = id;
  if (id !== shownQuery) {
    shownQuery = id;
    if (isEmpty(query)) results.clear();
    else results.run(query);
  }
  document.title = titleOf(query);
  if (current(query) && current(query).name !== shownIndex) describeIndex();
  showView(readView(), query);
}

function showView(view, query) {
  const name = view.name === "search" ? (isEmpty(query) ? "home" : "results") : view.name;
  const before = page.dataset.view;
  const address = JSON.stringify([view, query.index]);
  if (before === "results" && view.name !== "search" && address !== shownView) {
    lastPosition = { element: document.activeElement, scroll: scrollY };
  }
  page.dataset.view = name;
  show(name === "home", $("home"));
  show(name === "results", $("answer"));
  show(name === "codes", $("codes"));
  show(name === "items", $("items"));
  if (address === shownView) return;
  shownView = address;
  if (name === "codes") showCodes(view);
  if (name === "items") showList(view);
  if (view.name !== "search") {
    scrollTo(0, 0);
    $(`${name}-title`).focus({ preventScroll: true });
  } else if (before === "codes" || before === "items") {
    scrollTo(0, lastPosition.scroll);
    lastPosition.element?.focus({ preventScroll: true });
  }
  if (name === "home" && current(query)?.ready) showHome(current(query));
}

function titleOf(query) {
  const words = query.q || (query.like ? "Similar" : query.image ? "Image" : "");
  return words ? `${words} – genius` : "genius";
}

// Indexes

async function loadIndexes() {
  const wasLoading = current() && !current().ready;
  try {
    indexes = (await fetchIndexes()).indexes;
  } catch (error) {
    $("index-facts").textContent = "";
    if (isEmpty(readQuery())) showOffline(error);
    return;
  }
  if (isEmpty(readQuery())) show(false, $("error")); // but keep the error of a search
  describeIndex();
  if (!current()) return;
  if (!current().ready) setTimeout(loadIndexes, POLL);
  else if (wasLoading) refresh(); // requests were refused in the meantime
}

/** Loads results and view again. */
function refresh() {
  shownQuery = null;
  shownView = "";
  render();
}

/** Shows the current index in the header, and the actions it allows. */
function describeIndex() {
  const index = current();
  if (!index) return;
  shownIndex = index.name;
  form.describeIndexes(indexes, index);
  const name = indexes.length > 1 ? "" : `${index.name} · `;
  $("index-facts").textContent = `${name}${index.ready ? `${count(index.items)} items` : "loading …"}`;
  show(index.writable, $("add-open"));
  $("drop-more").textContent = index.writable ? "Drop several to add them to the index" : "";
  if (index.ready && isEmpty(readQuery())) showHome(index);
}

function showOffline(error) {
  $("error-title").textContent =
    error.status === 0 ? "The service cannot be reached" : "The service returned an error";
  $("error-message").textContent = error.message;
  $("retry").textContent = "Try again";
  $("retry").onclick = loadIndexes;
  show(true, $("error"), $("retry"));
}

// Actions

function search(query) {
  const again = identity(query) === shownQuery && readView().name === "search";
  if (again) shownQuery = null;
  goToQuery(query, { replace: again });
}

/** Finds items similar to an item, of the same modality. */
function similar({ id, modality }) {
  const { index } = readQuery();
  search({ ...DEFAULTS, ...settings(), index, target: modality, like: id, image: null });
  scrollTo(0, 0);
}

/** Lets the user search below a prefix of codes. */
function searchInside(pattern) {
  const query = form.read();
  const wanted = { ...query, branch: pattern, target: "" };
  if (isEmpty(wanted)) {
    goToView("");
    form.setBranch(pattern);
  } else search(wanted);
  $("q").focus();
  scrollTo(0, 0);
}

/** The options of the search, which stay when the query changes. */
function settings() {
  const { mode, k, beam, budget, where } = form.read();
  return { mode, k, beam, budget, where };
}

/** Puts an item's image into the search box, for the user to add words. */
function compose(item) {
  if (readView().name !== "search") goToView("");
  form.startComposing(item);
  setTimeout(() => $("q").focus()); // after the dialog has returned the focus
  scrollTo(0, 0);
}

function deleted(id) {
  toast(`${id} was deleted.`);
  for (const card of document.querySelectorAll(".card")) if (card.dataset.id === id) card.remove();
  reloadIndex();
}

function reloadIndex() {
  shownQuery = null;
  forgetNames();
  forgetHome();
  loadIndexes();
}

async function useFiles(files, how) {
  const index = current();
  if (addIsOpen()) return openAdd(files);
  closeItem();
  const [file] = files;
  if (files.length === 1 && isImage(file) && index?.items !== 0) {
    await form.useImage(file);
    search(form.read());
    const add = { label: "Add it to the index instead", id: "add-instead", run: () => openAdd(files) };
    return toast(`Searching with the image you ${how}.`, index?.writable ? add : null);
  }
  if (index?.writable) return openAdd(files);
  toast(
    files.length === 1
      ? "This is not an image. Drop an image to search with it."
      : "Drop one image to search with it.",
  );
}

function click(event) {
  const link = event.target.closest?.('a[href^="#/"]');
  if (link && !event.metaKey && !event.ctrlKey && !event.shiftKey) {
    event.preventDefault();
    goToView(link.getAttribute("href"));
    return closeItem();
  }
  const card = event.target.closest?.(".card[data-id]");
  if (card && event.target.closest(".card-open")) return openCard(card);
  if (card && event.target.closest(".card-similar")) return similar(card.dataset);
  const example = event.target.closest?.("[data-example-words], [data-example-like]");
  if (example?.dataset.exampleWords) return search({ ...form.read(), q: example.dataset.exampleWords });
  if (example) return similar({ id: example.dataset.exampleLike, modality: example.dataset.modality });
  if (event.target.closest?.("#brand")) {
    event.preventDefault();
    goToQuery({ ...DEFAULTS, index: readQuery().index, image: null });
    $("q").focus();
  }
  if (event.target.closest?.("#skip")) {
    event.preventDefault();
    $("main").focus();
  }
}

function openCard(card) {
  const others = { codes: codeItems, items: listItems }[page.dataset.view]?.() ?? results.hits();
  const item = others.find((one) => one.id === card.dataset.id);
  if (item) openItem(item, { others, mode: readQuery().mode, writable: current()?.writable ?? false });
}

function keys(event) {
  const typing = event.target.closest?.("input, textarea, select, dialog");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    $("q").focus();
    $("q").select();
  }
  if (event.key !== "Escape" || event.target.closest?.("dialog")) return;
  if ($("options").open) {
    $("options").open = false;
    $("options").querySelector("summary").focus();
  } else if (!$("toast").hidden) $("toast").hidden = true;
  else if (readView().name !== "search") goToView("");
}

start();
