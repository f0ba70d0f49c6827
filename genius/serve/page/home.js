// home.js: the page before the first search: words and images of the index itself, one click from a result.
// Takes them from the code tree, where every code is something different. Knows nothing of what a click does.

import { codes } from "./api.js";
import { image } from "./cards.js";
import { $, el, show } from "./dom.js";
import { title } from "./wording.js";

const WORDS = 6;
const BRIEF = 20; // characters: where there are enough such, longer ones are not shown
const IMAGES = 12;

let filled = null; // the index whose examples are shown

/** Shows examples of an index. */
export async function showHome(index) {
  const empty = index.items === 0;
  $("home-empty-hint").textContent = index.writable
    ? "Drop images or text files anywhere on this page to add them."
    : "There is nothing to find yet.";
  show(empty, $("home-empty"));
  show(!empty, $("home-hint"));
  show(index.writable, $("add-first"));
  if (filled === index.name) return;
  filled = index.name;
  const kinds = index.modalities ?? {};
  const ask = (code, wanted) => (wanted ? codes(String(code), { limit: 24 }) : null);
  try {
    const [images, texts, pairs] = await Promise.all([
      ask(0, kinds.image),
      ask(1, kinds.text),
      ask(2, kinds["image,text"]),
    ]);
    if (filled !== index.name) return;
    showImages(images ?? pairs);
    showWords([pairs, texts, images]);
  } catch {
    filled = null; // examples are a gift: the page works without them
  }
}

/** The examples have changed with the index. */
export const forgetHome = () => (filled = null);

function showImages(page) {
  const all = (page?.children ?? []).map((child) => child.example).filter((example) => example?.image_url);
  const buttons = pick(all, IMAGES).map((example) =>
    el(
      "button",
      {
        type: "button",
        data: { exampleLike: example.id, modality: example.modality },
        "aria-label": `Find similar to ${title(example)}`,
        title: "Find similar",
      },
      image(example, 128, { alt: "", instead: el("small", {}, title(example)) }),
    ),
  );
  $("home-images")
    .querySelector(".samples")
    .replaceChildren(...buttons);
  show(buttons.length > 0, $("home-images"));
}

function showWords(pages) {
  const said = pages.flatMap((page) => [
    ...(page?.children ?? []).map((child) => child.example),
    ...(page?.items ?? []),
  ]);
  const phrases = new Set();
  for (const item of said) {
    if (!item || title(item) === item.id) continue;
    const words = title(item).replace(/[.!]$/, "").trim();
    if (words.length >= 3 && words.length <= 32 && /^[\p{L}\p{N} ,'’-]+$/u.test(words))
      phrases.add(words.toLowerCase());
  }
  const brief = [...phrases].filter((words) => words.length <= BRIEF);
  const buttons = pick(brief.length < WORDS ? [...phrases] : brief, WORDS).map((words) =>
    el("button", { type: "button", class: "pill", data: { exampleWords: words } }, words),
  );
  $("home-words")
    .querySelector(".pills")
    .replaceChildren(...buttons);
  show(buttons.length > 0, $("home-words"));
}

/** Some of them, by chance. */
function pick(all, number) {
  const left = [...all];
  const picked = [];
  while (left.length && picked.length < number) picked.push(...left.splice(Math.floor(Math.random() * left.length), 1));
  return picked;
}
