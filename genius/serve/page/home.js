// home.js: examples from the index on the start page: words and images to search with.
// They come from the code tree, where different codes stand for different content.

import { codes } from "./api.js";
import { image } from "./cards.js";
import { $, el, show } from "./dom.js";
import { title } from "./wording.js";

const WORDS = 6;
const IMAGES = 12;
const SHORT = 20; // characters; longer phrases are shown only if there are too few short ones

let shownIndex = null; // the index whose examples are shown

/** Shows examples of an index. */
export async function showHome(index) {
  const empty = index.items === 0;
  $("home-empty-hint").textContent = index.writable
    ? "Drop images or text files anywhere on this page to add them."
    : "There is nothing to search yet.";
  show(empty, $("home-empty"));
  show(!empty, $("home-hint"));
  show(index.writable, $("add-first"));
  if (shownIndex === index.name) return;
  shownIndex = index.name;
  const modalities = index.modalities ?? {};
  const examples = (code, items) => (items ? codes(String(code), { limit: 24 }) : null);
  try {
    const [images, texts, pairs] = await Promise.all([
      examples(0, modalities.image),
      examples(1, modalities.text),
      examples(2, modalities["image,text"]),
    ]);
    if (shownIndex !== index.name) return;
    showImages(images ?? pairs);
    showWords([pairs, texts, images]);
  } catch {
    shownIndex = null; // the page works without examples
  }
}

/** Loads the examples again the next time, because the index has changed. */
export const forgetHome = () => (shownIndex = null);

function showImages(page) {
  const all = (page?.children ?? []).map((child) => child.example).filter((example) => example?.image_url);
  const buttons = sample(all, IMAGES).map((example) =>
    el(
      "button",
      {
        type: "button",
        data: { exampleLike: example.id, modality: example.modality },
        "aria-label": `Find similar to ${title(example)}`,
        title: "Find similar",
      },
      image(example, 128, { alt: "", fallback: el("small", {}, title(example)) }),
    ),
  );
  $("home-images")
    .querySelector(".samples")
    .replaceChildren(...buttons);
  show(buttons.length > 0, $("home-images"));
}

function showWords(pages) {
  const items = pages.flatMap((page) => [
    ...(page?.children ?? []).map((child) => child.example),
    ...(page?.items ?? []),
  ]);
  const phrases = new Set();
  for (const item of items) {
    if (!item || title(item) === item.id) continue;
    const words = title(item).replace(/[.!]$/, "").trim();
    if (words.length >= 3 && words.length <= 32 && /^[\p{L}\p{N} ,'’-]+$/u.test(words))
      phrases.add(words.toLowerCase());
  }
  const short = [...phrases].filter((words) => words.length <= SHORT);
  const buttons = sample(short.length < WORDS ? [...phrases] : short, WORDS).map((words) =>
    el("button", { type: "button", class: "pill", data: { exampleWords: words } }, words),
  );
  $("home-words")
    .querySelector(".pills")
    .replaceChildren(...buttons);
  show(buttons.length > 0, $("home-words"));
}

/** A random sample without repetition. */
function sample(all, number) {
  const rest = [...all];
  const chosen = [];
  while (rest.length && chosen.length < number) chosen.push(...rest.splice(Math.floor(Math.random() * rest.length), 1));
  return chosen;
}
