// item.js: one item, large, in a dialog, with what can be done with it. Knows items; not how searches run.

import { deleteItem, fillImage } from "./api.js";
import { chips } from "./chips.js";
import { $, el, show } from "./dom.js";
import { closeOverlay, openOverlay } from "./state.js";
import { alternative, kind, says, score, title } from "./wording.js";

const LONG = 100; // characters: a longer text is no title

let item = null;
let list = []; // the items it can be walked through with
let mode = "fast";
let gone = () => {};

/** similar, compose: what to do with an item; deleted: what to do when one is gone. */
export function startItem({ similar, compose, deleted }) {
  gone = deleted;
  $("item-image").addEventListener("error", () => show(false, $("item-figure")));
  $("item-close").addEventListener("click", () => $("item").close());
  $("item").addEventListener("click", (event) => event.target === $("item") && $("item").close());
  $("item").addEventListener("close", closeOverlay);
  $("item").addEventListener("keydown", (event) => {
    if (event.target.closest(".codes")) return;
    if (event.key === "ArrowRight") walk(1);
    if (event.key === "ArrowLeft") walk(-1);
  });
  $("item-previous").addEventListener("click", () => walk(-1));
  $("item-next").addEventListener("click", () => walk(1));
  $("item-similar").addEventListener("click", () => leaveFor(similar));
  $("item-compose").addEventListener("click", () => leaveFor(compose));
  $("item-delete").addEventListener("click", () => askDelete(true));
  $("item-delete-no").addEventListener("click", () => askDelete(false));
  $("item-delete-sure").addEventListener("click", remove);
}

/** others: the items shown beside it; scores: what their scores mean; writable: whether it may be deleted. */
export function openItem(one, { others = [], scores = "fast", writable = false } = {}) {
  list = others;
  mode = scores;
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

function leaveFor(action) {
  const chosen = item;
  action(chosen);
  closeItem();
}

function fill(one) {
  item = one;
  $("item").dataset.id = one.id;
  $("item-title").textContent = title(one).length > LONG ? kind(one.modality) : title(one);
  show(Boolean(one.image_url), $("item-figure"), $("item-compose"));
  $("item-image").removeAttribute("src");
  if (one.image_url) {
    $("item-image").alt = alternative(one);
    fillImage($("item-image"), one.image_url, 1024);
  }
  $("item-text").textContent = one.text ?? "";
  show(Boolean(one.text) && !says($("item-title").textContent, one.text), $("item-text"));
  $("item-codes").replaceChildren(chips(one.codes, { shared: one.codes.length }));
  $("item-metadata").replaceChildren(
    ...details(one).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
  askDelete(false);
  show(false, $("item-problem"));
  const at = list.findIndex((other) => other.id === one.id);
  show(at >= 0 && list.length > 1, $("item-walk"));
  $("item-place").textContent = `${at + 1} of ${list.length}`;
  $("item-previous").disabled = at <= 0;
  $("item-next").disabled = at < 0 || at >= list.length - 1;
}

function details(one) {
  const rows = [
    ["Name in the index", one.id],
    ["Kind", kind(one.modality)],
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

function walk(step) {
  const next = list[list.findIndex((other) => other.id === item.id) + step];
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
    gone(id);
  } catch (error) {
    $("item-problem").textContent = error.message;
    show(true, $("item-problem"));
  } finally {
    $("item-delete-sure").disabled = false;
  }
}
