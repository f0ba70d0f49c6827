// cards.js: items as cards in a grid, and moving between cards with the keyboard.

import { fillImage } from "./api.js";
import { chips } from "./chips.js";
import { el, icon } from "./dom.js";
import { altText, containsTitle, modalityName, score, title } from "./wording.js";

const SHORT_TEXT = 60; // characters; shorter texts get a larger font

/**
 * An <img> of an item's image.
 * size: maximum side in CSS pixels; alt: "" if the title is next to the image; fallback: element to show if the
 * image cannot be loaded, or null.
 */
export function image(item, size, { alt = altText(item), fallback = noImage() } = {}) {
  const element = el("img", { alt, loading: "lazy", decoding: "async", draggable: "false" });
  element.addEventListener("load", () => element.classList.add("loaded"), { once: true });
  element.addEventListener("error", () => element.replaceWith(...(fallback ? [fallback] : [])), { once: true });
  fillImage(element, item.image_url, devicePixelRatio > 1.25 ? 2 * size : size);
  return element;
}

const noImage = () => el("span", { class: "no-image" }, "The image cannot be shown.");

/** A card. item: as returned by the service, with a score if it is a hit; mode: search mode of the score. */
export function card(item, { mode = "fast", shared = 0, generated = 0 } = {}) {
  const name = title(item);
  const data = { id: item.id, modality: item.modality, codes: item.codes.join("-") };
  if (item.score !== undefined) data.score = item.score;
  return el(
    "li",
    { class: "card", data },
    el(
      "button",
      { class: "card-open", type: "button", "aria-label": `${modalityName(item.modality)}: ${name}` },
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
      el("span", {}, modalityName(item.modality)),
      item.score === undefined ? null : scoreLabel(item, mode),
    ),
    chips(item.codes, { shared, generated }),
  );
}

function face(item) {
  if (item.image_url) return el("span", { class: "card-image" }, image(item, 256));
  const text = item.text ?? title(item);
  return el(
    "span",
    { class: "card-image words" },
    el("span", { class: text.length <= SHORT_TEXT ? "brief" : null }, text),
  );
}

function caption(item, name) {
  if (!item.image_url && (!item.text || containsTitle(item.text, name))) return null; // the face shows it already
  return el("span", { class: "card-title" }, item.image_url && item.text ? item.text : name);
}

function scoreLabel(item, mode) {
  const { text, meaning } = score(item.score, mode);
  return el("span", { class: "score", title: meaning }, el("span", { class: "visually-hidden" }, "Score "), text);
}

/** Fills a grid. A grid of texts only gets wider columns. */
export function fillGrid(grid, items, cards) {
  grid.classList.toggle("texts", items.length > 0 && items.every((item) => !item.image_url));
  grid.replaceChildren(...cards);
}

/** Placeholder cards that are shown while loading. */
export function skeletons(number) {
  return Array.from({ length: number }, () =>
    el(
      "li",
      { class: "card skeleton" },
      el("span", { class: "card-image" }),
      el("span", { class: "line" }),
      el("span", { class: "line short" }),
    ),
  );
}

/** Arrow keys move between the cards of a grid; Home and End go to the first and the last card. */
export function moveInGrid(event) {
  const grid = event.target.closest?.(".grid");
  const current = event.target.closest?.(".card");
  if (!grid || !current || event.target.closest(".codes")) return;
  const cards = [...grid.children];
  const columns = cards.filter((one) => one.offsetTop === cards[0].offsetTop).length;
  const position = cards.indexOf(current);
  const next = {
    ArrowRight: position + 1,
    ArrowLeft: position - 1,
    ArrowDown: position + columns,
    ArrowUp: position - columns,
    Home: 0,
    End: cards.length - 1,
  }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  cards[next]?.querySelector(".card-open")?.focus();
}
