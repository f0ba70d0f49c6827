// cards.js: items as cards in a grid, wherever they come from. Knows how an item looks and how one moves among cards
// by keyboard; not what happens when one is opened.

import { fillImage } from "./api.js";
import { chips } from "./chips.js";
import { el, icon } from "./dom.js";
import { alternative, kind, says, score, title } from "./wording.js";

const BRIEF = 60; // characters: shorter texts are written larger

/**
 * An <img> of an item's image. size: at most so many pixels of the page; alt: "" where the item is named beside it;
 * instead: what takes its place when it cannot be shown, null for nothing.
 */
export function image(item, size, { alt = alternative(item), instead = gone() } = {}) {
  const element = el("img", { alt, loading: "lazy", decoding: "async", draggable: "false" });
  element.addEventListener("load", () => element.classList.add("there"), { once: true });
  element.addEventListener("error", () => element.replaceWith(...(instead ? [instead] : [])), { once: true });
  fillImage(element, item.image_url, devicePixelRatio > 1.25 ? 2 * size : size);
  return element;
}

const gone = () => el("span", { class: "gone" }, "The image cannot be shown.");

/**
 * A card. item: as the service gives it, with a score if it is a hit.
 * mode: what the score means; shared, written: see `chips`.
 */
export function card(item, { mode = "fast", shared = 0, written = 0 } = {}) {
  const name = title(item);
  const data = { id: item.id, modality: item.modality, codes: item.codes.join("-") };
  if (item.score !== undefined) data.score = item.score;
  return el(
    "li",
    { class: "card", data },
    el(
      "button",
      { class: "card-open", type: "button", "aria-label": `${kind(item.modality)}: ${name}` },
      face(item),
      caption(item, name),
    ),
    el(
      "button",
      { class: "card-similar", type: "button", "aria-label": `Find similar to ${name}`, title: "Find similar" },
      icon("similar"),
      el("span", { "aria-hidden": "true" }, "Similar"),
    ),
    el(
      "div",
      { class: "card-facts" },
      el("span", { class: "kind" }, kind(item.modality)),
      item.score === undefined ? null : scoreOf(item, mode),
    ),
    chips(item.codes, { shared, written }),
  );
}

function face(item) {
  if (item.image_url) return el("span", { class: "card-image" }, image(item, 256));
  const text = item.text ?? title(item);
  return el(
    "span",
    { class: "card-image words" },
    el("span", { class: text.length <= BRIEF ? "brief" : null }, text),
  );
}

function caption(item, name) {
  if (!item.image_url && (!item.text || says(item.text, name))) return null; // the face says it already
  return el("span", { class: "card-title" }, item.image_url && item.text ? item.text : name);
}

/** Fills a grid. Texts alone get wider columns than images do. */
export function fillGrid(grid, items, cards) {
  grid.classList.toggle("texts", items.length > 0 && items.every((item) => !item.image_url));
  grid.replaceChildren(...cards);
}

function scoreOf(item, mode) {
  const { text, meaning } = score(item.score, mode);
  return el("span", { class: "score", title: meaning }, el("span", { class: "unseen" }, "Score "), text);
}

export function skeletons(number) {
  return Array.from({ length: number }, () =>
    el(
      "li",
      { class: "card ghost" },
      el("span", { class: "card-image" }),
      el("span", { class: "line" }),
      el("span", { class: "line short" }),
    ),
  );
}

/** Arrow keys move among the cards of a grid; Home and End go to the first and the last. */
export function walkGrid(event) {
  const grid = event.target.closest?.(".grid");
  const here = event.target.closest?.(".card");
  if (!grid || !here || event.target.closest(".codes")) return;
  const cards = [...grid.children];
  const columns = cards.filter((one) => one.offsetTop === cards[0].offsetTop).length;
  const at = cards.indexOf(here);
  const to = {
    ArrowRight: at + 1,
    ArrowLeft: at - 1,
    ArrowDown: at + columns,
    ArrowUp: at - columns,
    Home: 0,
    End: cards.length - 1,
  }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  cards[to]?.querySelector(".card-open")?.focus();
}
