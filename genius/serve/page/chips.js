// chips.js: an item's ID as a row of code chips, and the highlight of what shares a code. A chip stands for a beginning
// of IDs: its code and those before it. Knows IDs; nothing of queries.

import { el } from "./dom.js";
import { codesAddress } from "./state.js";
import { codeName } from "./wording.js";

/** Whether an ID, as "0-17-203", has this beginning. */
export const hasPrefix = (id, prefix) => id === prefix || id.startsWith(`${prefix}-`);

/** How many codes two IDs have in common at the beginning. */
export function commonLength(first, second) {
  let length = 0;
  while (length < first.length && length < second.length && first[length] === second[length]) length += 1;
  return length;
}

/** The chips of one ID. shared: codes that other results have too; written: codes that the decoder wrote. */
export function chips(codes, { shared = 0, written = 0 } = {}) {
  const row = el("div", { class: "codes", role: "group", "aria-label": `ID ${codes.join(" ")}` });
  row.append(...codes.map((code, level) => chip(codes.slice(0, level + 1), level < shared, level < written)));
  row.firstElementChild?.setAttribute("tabindex", "0");
  return row;
}

function chip(prefix, shared, written) {
  const level = prefix.length - 1;
  const code = prefix[level];
  const facts = [
    `Code ${code} at place ${level + 1} of the ID${level === 0 ? ` (${codeName(code, 0).toLowerCase()})` : ""}`,
    shared && "shared with another result",
    written && "written by the decoder",
  ];
  const description = facts.filter(Boolean).join(", ");
  return el(
    "a",
    {
      class: `code${shared ? " shared" : ""}${written ? " written" : ""}`,
      href: codesAddress(prefix),
      tabindex: "-1",
      title: `${description}. Click to see everything that has it.`,
      "aria-label": description,
      data: { code, level, prefix: prefix.join("-") },
      vars: { level },
    },
    `${code}`,
  );
}

// The highlight: pointing at a chip, a node of the tree or a shared code lights up everything with that beginning.

export function startHighlight() {
  const point = (event) => light(event.target.closest?.("[data-prefix]")?.dataset.prefix ?? null);
  document.addEventListener("pointerover", point);
  document.addEventListener("focusin", point);
  document.addEventListener("focusout", () => light(null));
  document.addEventListener("keydown", walk);
}

let lit = null;

export function light(prefix) {
  if (prefix === lit) return;
  lit = prefix;
  for (const card of document.querySelectorAll("#results [data-codes]")) {
    card.classList.toggle("beside", prefix !== null && !hasPrefix(card.dataset.codes, prefix));
  }
  for (const mark of document.querySelectorAll("[data-prefix]")) {
    mark.classList.toggle("lit", prefix !== null && hasPrefix(prefix, mark.dataset.prefix));
  }
}

/** Left and right move within a row of chips, which is one stop of the Tab key. */
function walk(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  const row = event.target.closest?.(".codes");
  if (!step || !row) return;
  event.preventDefault();
  event.stopPropagation();
  const all = [...row.querySelectorAll(".code")];
  const next = all[all.indexOf(event.target) + step];
  if (!next) return;
  event.target.setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}
