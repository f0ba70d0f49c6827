// names.js: names of codes: the words that set the items of a code apart from those of its siblings. The service makes
// them in the background and sends them with codes and results; until then codes are shown as numbers.

import { codeName, percent } from "./wording.js";

const MIXED = 0.15; // a name whose first word fewer of the items have than this is not trusted
const LONG = 26; // characters

let names = {}; // prefix such as "0-17" -> {name, purity, elsewhere}

/** Remembers names that came with a response. */
export const learnNames = (more) => Object.assign(names, more ?? {});

/** Forgets all names, because the index is another one or has changed. */
export const forgetNames = () => (names = {});

const known = (codes) => names[codes.join("-")] ?? null;

/** The name of a prefix, or null. mixed: also names that few of the items fit. */
export function nameOf(codes, { mixed = true } = {}) {
  const found = known(codes);
  return found && (mixed || found.purity >= MIXED) ? found.name : null;
}

/** The label of the last code of a prefix: the modality, its name, or its number. "*" stands for any code. */
export function codeLabel(codes) {
  const last = codes.at(-1);
  if (last === "*") return "any";
  return codes.length === 1 ? codeName(Number(last), 0) : (nameOf(codes) ?? `${last}`);
}

export const shortLabel = (codes) => {
  const label = codeLabel(codes);
  return label.length > LONG ? `${label.slice(0, LONG - 1).trimEnd()}…` : label;
};

/** The labels of all codes of a prefix: "Images › cat › black". Codes without a name after the last named one are left out. */
export function pathLabel(codes) {
  let length = codes.length;
  while (length > 1 && !nameOf(codes.slice(0, length))) length -= 1;
  return codes
    .slice(0, length)
    .map((_, i) => codeLabel(codes.slice(0, i + 1)))
    .join(" › ");
}

/** How well the name of a prefix fits, as a sentence, or "". */
export function purityOf(codes) {
  const found = known(codes);
  if (!found || codes.length < 2) return "";
  const word = found.name.split(", ")[0];
  return `“${word}” fits ${percent(found.purity)} of its items and ${percent(found.elsewhere)} of its siblings’.`;
}
