// main.js: puts the page together. The address decides what is shown: every action changes it, and `render` follows.
// The only module that knows all the others.

import { addIsOpen, closeAdd, openAdd, startAdd } from "./add.js";
import { indexes as askIndexes, onKeyWanted, useIndex } from "./api.js";
import { walkGrid } from "./cards.js";
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

const LOADING = 1500; // milliseconds between looks while an index is being loaded

const page = document.documentElement;

let known = []; // the indexes there are
let described = null; // the one that the page says it shows
let written = null; // the identity of the query that was last put into the form
let searched = null; // the identity of the query whose answer is shown
let viewed = ""; // the view that is shown, as the address has it
let left = { element: null, scroll: 0 }; // where the results were left for another view

const current = (query = readQuery()) => known.find((index) => index.name === query.index) ?? known[0] ?? null;

function start() {
  onKeyWanted(askForKey);
  form.startForm((query) => search(query));
  results.startResults((changes) => search({ ...readQuery(), ...changes }));
  startHow();
  startHighlight();
  startCodes();
  startList();
  startItem({ similar, compose, deleted });
  startAdd({ done: changedIndex, show: (ids) => goToView(itemsAddress(ids)) });
  onFiles(givenFiles, $("dropzone"));
  document.addEventListener("click", click);
  document.addEventListener("keydown", keys);
  document.addEventListener("keydown", walkGrid);
  onChange(render);
  if (overlay()) history.replaceState({ ...history.state, overlay: null }, "");
  if (readQuery().lost) toast("The image of this search is gone with the reload. Choose it again.");
  loadIndexes();
  render();
  if (!$("key-dialog").open) $("q").focus();
}

// What the address says

function render() {
  if (!overlay()) {
    closeItem();
    closeAdd();
  }
  const query = readQuery();
  useIndex(query.index);
  const wanted = identity(query);
  if (wanted !== written) form.write(query); // else what is being put together in the form stays there
  written = wanted;
  if (wanted !== searched) {
    searched = wanted;
    if (isEmpty(query)) results.clear();
    else results.run(query);
  }
  document.title = titleOf(query);
  if (current(query) && current(query).name !== described) describeIndex();
  showView(readView(), query);
}

function showView(view, query) {
  const name = view.name === "search" ? (isEmpty(query) ? "home" : "results") : view.name;
  const before = page.dataset.view;
  const address = JSON.stringify([view, query.index]);
  if (before === "results" && view.name !== "search" && address !== viewed) {
    left = { element: document.activeElement, scroll: scrollY };
  }
  page.dataset.view = name;
  show(name === "home", $("home"));
  show(name === "results", $("answer"));
  show(name === "codes", $("codes"));
  show(name === "items", $("items"));
  if (address === viewed) return;
  viewed = address;
  if (name === "codes") showCodes(view);
  if (name === "items") showList(view);
  if (view.name !== "search") {
    scrollTo(0, 0);
    $(`${name}-title`).focus({ preventScroll: true });
  } else if (before === "codes" || before === "items") {
    scrollTo(0, left.scroll);
    left.element?.focus({ preventScroll: true });
  }
  if (name === "home" && current(query)?.ready) showHome(current(query));
}

function titleOf(query) {
  const words = query.q || (query.like ? "Similar" : query.image ? "Image" : "");
  return words ? `${words} – genius` : "genius";
}

// The indexes

async function loadIndexes() {
  const waited = current() && !current().ready;
  try {
    known = (await askIndexes()).indexes;
  } catch (error) {
    $("index-facts").textContent = "";
    if (isEmpty(readQuery())) offline(error);
    return;
  }
  if (isEmpty(readQuery())) show(false, $("error")); // one that a search has left is none of this
  describeIndex();
  if (!current()) return;
  if (!current().ready) setTimeout(loadIndexes, LOADING);
  else if (waited) changed(); // what was asked meanwhile was refused
}

/** What is shown may no longer be true: look again. */
function changed() {
  searched = null;
  viewed = "";
  render();
}

/** Says which index is in use, and what can be done with it. */
function describeIndex() {
  const index = current();
  if (!index) return;
  described = index.name;
  form.describeIndexes(known, index);
  const name = known.length > 1 ? "" : `${index.name} · `;
  $("index-facts").textContent = `${name}${index.ready ? `${count(index.items)} items` : "is being loaded …"}`;
  show(index.writable, $("add-open"));
  $("drop-more").textContent = index.writable ? "Drop several to add them to the index" : "";
  if (index.ready && isEmpty(readQuery())) showHome(index);
}

function offline(error) {
  $("error-title").textContent =
    error.status === 0 ? "The service cannot be reached" : "The service did not answer as it should";
  $("error-message").textContent = error.message;
  $("retry").textContent = "Try again";
  $("retry").onclick = loadIndexes;
  show(true, $("error"), $("retry"));
}

// Actions

function search(query) {
  const again = identity(query) === searched && readView().name === "search";
  if (again) searched = null;
  goToQuery(query, { replace: again });
}

/** Things of the item's own kind: those are what it can be compared with best. */
function similar({ id, modality }) {
  const { index } = readQuery();
  search({ ...DEFAULTS, ...settings(), index, target: modality, like: id, image: null });
  scrollTo(0, 0);
}

/** The settings of the search stay when its content changes. */
function settings() {
  const { mode, k, beam, budget, where } = form.read();
  return { mode, k, beam, budget, where };
}

/** The item's image goes into the box, and waits there for words. */
function compose(item) {
  if (readView().name !== "search") goToView("");
  form.startComposing(item);
  setTimeout(() => $("q").focus()); // after the dialog has given the focus back
  scrollTo(0, 0);
}

function deleted(id) {
  toast(`${id} was deleted.`);
  for (const card of document.querySelectorAll(".card")) if (card.dataset.id === id) card.remove();
  changedIndex();
}

function changedIndex() {
  searched = null;
  forgetHome();
  loadIndexes();
}

async function givenFiles(files, how) {
  const index = current();
  if (addIsOpen()) return openAdd(files);
  closeItem();
  const [file] = files;
  if (files.length === 1 && isImage(file) && index?.items !== 0) {
    await form.useImage(file);
    search(form.read());
    const instead = { label: "Add it to the index instead", id: "add-instead", run: () => openAdd(files) };
    return toast(`Searching with the image you ${how}.`, index?.writable ? instead : null);
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
  if (item) openItem(item, { others, scores: readQuery().mode, writable: current()?.writable ?? false });
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
