// item.js: the dialog that shows one item and its actions.

import { deleteItem, fillImage } from "./api.js";
import { chips } from "./chips.js";
import { $, el, show } from "./dom.js";
import { closeOverlay, openOverlay } from "./state.js";
import { altText, containsTitle, modalityName, score, title } from "./wording.js";

const MAX_TITLE = 100; // characters; a longer text is not used as the title

let item = null;
let list = []; // the items to step through
let mode = "fast";
let onDeleted = () => {};

/** similar, compose: actions on an item; deleted: called with the id of a deleted item. */
export function startItem({ similar, compose, deleted }) {
  onDeleted = deleted;
  $("item-image").addEventListener("error", () => show(false, $("item-figure")));
  $("item-close").addEventListener("click", () => $("item").close());
  $("item").addEventListener("click", (event) => event.target === $("item") && $("item").close());
  $("item").addEventListener("close", closeOverlay);
  $("item").addEventListener("keydown", (event) => {
    if (event.target.closest(".codes")) return;
    if (event.key === "ArrowRight") step(1);
    if (event.key === "ArrowLeft") step(-1);
  });
  $("item-previous").addEventListener("click", () => step(-1));
  $("item-next").addEventListener("click", () => step(1));
  $("item-similar").addEventListener("click", () => closeAndRun(similar));
  $("item-compose").addEventListener("click", () => closeAndRun(compose));
  $("item-delete").addEventListener("click", () => askDelete(true));
  $("item-delete-no").addEventListener("click", () => askDelete(false));
  $("item-delete-sure").addEventListener("click", remove);
}

/** others: the items to step through; mode: search mode of the scores; writable: whether items can be deleted. */
export function openItem(one, { others, mode: searchMode, writable }) {
  list = others;
  mode = searchMode;
  show(writable, $("item-delete").parentElement);
  fill(one);
  if (!$("item").open) {
    openOverlay(one.id);
    $("item").showModal();
  }
}

export function closeItem() {
  if ($("item").open) $("item").close();
}

function closeAndRun(action) {
  const chosen = item;
  action(chosen);
  closeItem();
}

function fill(one) {
  item = one;
  $("item").dataset.id = one.id;
  $("item-title").textContent = title(one).length > MAX_TITLE ? modalityName(one.modality) : title(one);
  show(Boolean(one.image_url), $("item-figure"), $("item-compose"));
  $("item-image").removeAttribute("src");
  if (one.image_url) {
    $("item-image").alt = altText(one);
    fillImage($("item-image"), one.image_url, 1024);
  }
  $("item-text").textContent = one.text ?? "";
  show(Boolean(one.text) && !containsTitle($("item-title").textContent, one.text), $("item-text"));
  $("item-codes").replaceChildren(chips(one.codes, { shared: one.codes.length }));
  $("item-metadata").replaceChildren(
    ...details(one).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
  askDelete(false);
  show(false, $("item-problem"));
  const position = list.findIndex((other) => other.id === one.id);
  show(position >= 0 && list.length > 1, $("item-steps"));
  $("item-position").textContent = `${position + 1} of ${list.length}`;
  $("item-previous").disabled = position <= 0;
  $("item-next").disabled = position < 0 || position >= list.length - 1;
}

function details(one) {
  const rows = [
    ["Item id", one.id],
    ["Modality", modalityName(one.modality)],
  ];
  if (one.score !== undefined) {
    const { text, meaning } = score(one.score, mode);
    rows.push(["Score", el("span", {}, text, el("br"), el("small", {}, meaning))]);
  }
  for (const [name, value] of Object.entries(one.metadata ?? {})) {
    rows.push([name, typeof value === "string" ? value : JSON.stringify(value)]);
  }
  return rows;
}

function step(by) {
  const next = list[list.findIndex((other) => other.id === item.id) + by];
  if (next) fill(next);
}

function askDelete(asking) {
  show(!asking, $("item-delete"));
  show(asking, $("item-delete-ask"));
  if (asking) $("item-delete-no").focus();
}

async function remove() {
  const { id } = item;
  $("item-delete-sure").disabled = true;
  try {
    await deleteItem(id);
    closeItem();
    onDeleted(id);
  } catch (error) {
    $("item-problem").textContent = error.message;
    show(true, $("item-problem"));
  } finally {
    $("item-delete-sure").disabled = false;
  }
}
