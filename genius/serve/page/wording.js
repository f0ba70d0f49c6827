// wording.js: how numbers, kinds and items are said to people. Knows the service's answers; touches no element.

const COUNT = new Intl.NumberFormat("en");
const NAMES = ["name", "title", "caption", "label", "headline", "description"];
const KINDS = { image: "Image", text: "Text", "image,text": "Pair" };
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

export function percent(part) {
  const value = part * 100;
  if (value > 0 && value < 0.1) return "under 0.1 %";
  return `${value >= 10 ? Math.round(value) : value.toFixed(1)} %`;
}

const minus = (text) => text.replace("-", "−");
export const logProbability = (value) => minus(value.toFixed(2));

export function score(value, mode) {
  return mode === "generate"
    ? {
        text: logProbability(value),
        meaning: "Log-probability of the item's ID for this query: 0 is certain, the more negative the less likely.",
      }
    : {
        text: minus(value.toFixed(2)),
        meaning: "Similarity of query and item: the cosine of their vectors, at most 1. Higher is better.",
      };
}

export const kind = (modality) => KINDS[modality] ?? modality;

/** What a code on the first level stands for; on other levels codes have no names. */
export const codeName = (code, level) => (level === 0 ? (FIRST_CODES[code] ?? `${code}`) : `${code}`);

/** The name of a beginning of IDs, as in "Images · 17 · 203". */
export const prefixName = (codes) => codes.map(codeName).join(" · ");

/** What an item is called: a name in its metadata, its text, or its id. */
export function title(item) {
  for (const name of NAMES) {
    const value = item.metadata?.[name];
    if (typeof value === "string" && value.trim()) return value.trim();
  }
  return item.text?.trim() || item.id;
}

export function alternative(item) {
  return item.text?.trim() || title(item);
}

/** Whether a text says a name already, however it is spelt. */
export const says = (text, name) => text.toLowerCase().includes(name.toLowerCase().replace(/[.!?]+$/, ""));
