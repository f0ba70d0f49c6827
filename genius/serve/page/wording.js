// wording.js: numbers, modalities and items as text.

const COUNT = new Intl.NumberFormat("en");
const TITLE_FIELDS = ["name", "title", "caption", "label", "headline", "description"];
const MODALITIES = { image: "Image", text: "Text", "image,text": "Pair" };
const FIRST_CODES = ["Images", "Texts", "Pairs"];

export const count = (number) => COUNT.format(number);

export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

export function milliseconds(seconds) {
  const ms = seconds * 1000;
  if (ms >= 10000) return `${(ms / 1000).toFixed(0)} s`;
  return `${ms >= 10 ? Math.round(ms) : ms.toFixed(1)} ms`;
}

export function percent(ratio) {
  const value = ratio * 100;
  if (value > 0 && value < 0.1) return "under 0.1 %";
  return `${value >= 10 ? Math.round(value) : value.toFixed(1)} %`;
}

const minus = (text) => text.replace("-", "−");
export const logProbability = (value) => minus(value.toFixed(2));

/** A score as text, and what it means in this search mode. */
export function score(value, mode) {
  return mode === "generate"
    ? {
        text: logProbability(value),
        meaning: "Log-probability of the item's semantic ID for this query. 0 is certain; lower is less likely.",
      }
    : {
        text: minus(value.toFixed(2)),
        meaning: "Similarity of query and item: the cosine of their vectors, at most 1. Higher is better.",
      };
}

export const modalityName = (modality) => MODALITIES[modality] ?? modality;

/** The label of a code. The first level is the modality and has names; other codes are shown as numbers. */
export const codeName = (code, level) => (level === 0 ? (FIRST_CODES[code] ?? `${code}`) : `${code}`);

/** The label of a prefix, such as "Images · 17 · 203". */
export const prefixName = (codes) => codes.map(codeName).join(" · ");

/** The title of an item: a name in its metadata, its text, or its id. */
export function title(item) {
  for (const field of TITLE_FIELDS) {
    const value = item.metadata?.[field];
    if (typeof value === "string" && value.trim()) return value.trim();
  }
  return item.text?.trim() || item.id;
}

/** The alternative text of an item's image. */
export const altText = (item) => item.text?.trim() || title(item);

/** Whether a text contains a title, ignoring case and final punctuation. */
export const containsTitle = (text, name) => text.toLowerCase().includes(name.toLowerCase().replace(/[.!?]+$/, ""));
