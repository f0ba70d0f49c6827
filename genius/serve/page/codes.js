// codes.js: the code view: everything whose ID has a given beginning, the codes that may follow, and a way up.
// Knows the code tree as the service shows it.

import { codes as askCodes } from "./api.js";
import { card, fillGrid, image, skeletons } from "./cards.js";
import { $, el, show } from "./dom.js";
import { codesAddress, goToView, leaveView, readView } from "./state.js";
import { codeName, count, plural, title } from "./wording.js";

const PAGE = 48;

let control = null;
let shown = { items: [] };

export const codeItems = () => shown.items;

export function startCodes() {
  $("codes-close").addEventListener("click", leaveView);
  $("any-beginning").addEventListener("change", toggleBeginning);
  $("codes-previous").addEventListener("click", () => turn(-1));
  $("codes-next").addEventListener("click", () => turn(1));
}

/** pattern: "0-17" or "*-17"; "" is the root. */
export async function showCodes({ pattern, offset }) {
  control?.abort();
  control = new AbortController();
  const { signal } = control;
  const codes = pattern ? pattern.split("-") : [];
  breadcrumb(codes);
  $("codes-title").textContent = heading(codes);
  $("codes-lead").textContent = "Looking …";
  $("codes-items").replaceChildren(...skeletons(8));
  show(false, $("codes-next-part"), $("codes-paging"), $("any-beginning-label"), $("codes-items-title"));
  try {
    const page = await askCodes(pattern, { limit: PAGE, offset }, signal);
    if (!signal.aborted) fill(page, codes, offset);
  } catch (error) {
    if (error.name === "AbortError") return;
    shown = { items: [] };
    $("codes-lead").textContent = error.message;
    $("codes-items").replaceChildren();
  }
}

function heading(codes) {
  if (!codes.length) return "All codes";
  const last = codes.at(-1);
  if (codes.slice(0, -1).includes("*")) return `Code ${last} at place ${codes.length}, with any beginning`;
  return codes.length === 1 ? codeName(Number(last), 0) : `Code ${last} at place ${codes.length}`;
}

function breadcrumb(codes) {
  const steps = [{ label: "All codes", codes: [] }];
  codes.forEach((code, level) => {
    const label = code === "*" ? "any" : codeName(Number(code), level);
    steps.push({ label, codes: codes.slice(0, level + 1), level });
  });
  const links = steps.map((step, i) => {
    const current = i === steps.length - 1;
    const look = step.level === undefined || step.codes.at(-1) === "*" ? "" : "code shared";
    return el(
      "li",
      {},
      el(
        "a",
        {
          class: look,
          href: codesAddress(step.codes),
          "aria-current": current ? "page" : null,
          vars: { level: step.level ?? 0 },
        },
        step.label,
      ),
    );
  });
  $("breadcrumb").replaceChildren(el("ol", {}, links));
}

function fill(page, codes, offset) {
  shown = page;
  const beginning = codes.length
    ? ""
    : "Every item has an ID that the model writes code by code. The first code is the item's kind; items that are " +
      "alike share the codes after it. ";
  const many = `${plural(page.total, "item")} with ${plural(page.ids, "different ID")}.`;
  $("codes-lead").textContent = `${beginning}${page.total ? many : "No item has this code."}`;
  nextCodes(page, codes);
  anyBeginning(codes);
  $("codes-items-title").textContent = "Items";
  show(page.items.length > 0, $("codes-items-title"));
  const shared = codes.includes("*") ? 0 : codes.length;
  fillGrid(
    $("codes-items"),
    page.items,
    page.items.map((item) => card(item, { shared })),
  );
  const end = offset + page.items.length;
  $("codes-range").textContent = page.items.length
    ? `${count(offset + 1)} to ${count(end)} of ${count(page.total)}`
    : "";
  $("codes-previous").disabled = offset === 0;
  $("codes-next").disabled = end >= page.total;
  show(page.total > page.items.length, $("codes-paging"));
}

function nextCodes(page, codes) {
  const level = codes.length;
  const children = page.children.map((child) => {
    const pattern = [...codes, child.code];
    const { example } = child;
    const words = el("span", { class: "words" }, example ? title(example) : "");
    const face = example?.image_url ? image(example, 128, { alt: "", instead: words }) : words;
    return el(
      "li",
      {},
      el(
        "a",
        {
          href: codesAddress(pattern),
          data: { child: pattern.join("-") },
          vars: { level },
          "aria-label": `Code ${codeName(child.code, level)}, ${plural(child.items, "item")}`,
        },
        el("span", { class: "face" }, face),
        el("span", { class: "code shared" }, codeName(child.code, level)),
        el("span", { class: "many" }, count(child.items)),
      ),
    );
  });
  const more = page.more_children > 0 ? `, and ${count(page.more_children)} more` : "";
  $("codes-children-title").textContent = level
    ? `What may come next: ${plural(children.length, "code")}${more}`
    : "Kinds";
  $("codes-children").classList.toggle("kinds", level === 0);
  $("codes-children").replaceChildren(...children);
  show(children.length > 0, $("codes-next-part"));
}

function anyBeginning(codes) {
  const before = codes.slice(0, -1);
  show(codes.length > 1, $("any-beginning-label"));
  if (codes.length < 2) return;
  $("any-beginning").checked = before.every((code) => code === "*");
  $("any-beginning-text").textContent = `Show code ${codes.at(-1)} at this place in the ID with any beginning`;
}

let before = []; // the codes in front of the one shown, when the beginning was last fixed

function toggleBeginning() {
  const codes = readView().pattern.split("-");
  const last = codes.at(-1);
  if ($("any-beginning").checked) {
    before = codes.slice(0, -1);
    goToView(codesAddress([...before.map(() => "*"), last]));
  } else {
    const known =
      before.length === codes.length - 1
        ? before
        : (shown.items[0]?.codes.slice(0, codes.length - 1) ?? codes.slice(0, -1));
    goToView(codesAddress([...known, last]));
  }
}

function turn(direction) {
  const { pattern, offset } = readView();
  goToView(codesAddress(pattern ? pattern.split("-") : [], Math.max(0, offset + direction * PAGE)));
}
