// codes.js: the code view: all items whose semantic ID starts with a prefix, the codes that come next, and a breadcrumb.

import { codes as fetchCodes } from "./api.js";
import { card, fillGrid, image, skeletons } from "./cards.js";
import { $, el, show } from "./dom.js";
import { codesAddress, goToView, leaveView, readView } from "./state.js";
import { codeName, count, plural, title } from "./wording.js";

const PAGE_SIZE = 48;

let request = null; // AbortController of the running request
let shown = { items: [] };

export const codeItems = () => shown.items;

export function startCodes() {
  $("codes-close").addEventListener("click", leaveView);
  $("any-prefix").addEventListener("change", toggleAnyPrefix);
  $("codes-previous").addEventListener("click", () => turnPage(-1));
  $("codes-next").addEventListener("click", () => turnPage(1));
}

/** Shows a view. pattern: "0-17", "*-17" with any code at the first level, or "" for the root. */
export async function showCodes({ pattern, offset }) {
  request?.abort();
  request = new AbortController();
  const { signal } = request;
  const codes = pattern ? pattern.split("-") : [];
  showBreadcrumb(codes);
  $("codes-title").textContent = heading(codes);
  $("codes-lead").textContent = "Loading …";
  $("codes-items").replaceChildren(...skeletons(8));
  show(false, $("codes-next-part"), $("codes-paging"), $("any-prefix-label"), $("codes-items-title"));
  try {
    const page = await fetchCodes(pattern, { limit: PAGE_SIZE, offset }, signal);
    if (!signal.aborted) showPage(page, codes, offset);
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
  if (codes.slice(0, -1).includes("*")) return `Code ${last} at level ${codes.length}, with any prefix`;
  return codes.length === 1 ? codeName(Number(last), 0) : `Code ${last} at level ${codes.length}`;
}

function showBreadcrumb(codes) {
  const steps = [{ label: "All codes", codes: [] }];
  codes.forEach((code, level) => {
    const label = code === "*" ? "any" : codeName(Number(code), level);
    steps.push({ label, codes: codes.slice(0, level + 1), level });
  });
  const links = steps.map((step, i) =>
    el(
      "li",
      {},
      el(
        "a",
        {
          class: step.level === undefined || step.codes.at(-1) === "*" ? "" : "code shared",
          href: codesAddress(step.codes),
          "aria-current": i === steps.length - 1 ? "page" : null,
          vars: { level: step.level ?? 0 },
        },
        step.label,
      ),
    ),
  );
  $("breadcrumb").replaceChildren(el("ol", {}, links));
}

function showPage(page, codes, offset) {
  shown = page;
  const introduction = codes.length
    ? ""
    : "Every item has a semantic ID, a sequence of codes. The first code is the modality; similar items share the " +
      "codes after it. ";
  const total = `${plural(page.total, "item")} with ${plural(page.ids, "different semantic ID")}.`;
  $("codes-lead").textContent = `${introduction}${page.total ? total : "No item has these codes."}`;
  showChildren(page, codes);
  showAnyPrefix(codes);
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

function showChildren(page, codes) {
  const level = codes.length;
  const children = page.children.map(({ code, items, example }) => {
    const pattern = [...codes, code];
    const words = el("span", { class: "words" }, example ? title(example) : "");
    const face = example?.image_url ? image(example, 128, { alt: "", fallback: words }) : words;
    return el(
      "li",
      {},
      el(
        "a",
        {
          href: codesAddress(pattern),
          data: { child: pattern.join("-") },
          vars: { level },
          "aria-label": `Code ${codeName(code, level)}, ${plural(items, "item")}`,
        },
        el("span", { class: "face" }, face),
        el("span", { class: "code shared" }, codeName(code, level)),
        el("span", {}, count(items)),
      ),
    );
  });
  const more = page.more_children > 0 ? `, and ${count(page.more_children)} more` : "";
  $("codes-children-title").textContent = level
    ? `Next level: ${plural(children.length, "code")}${more}`
    : "Modalities";
  $("codes-children").classList.toggle("modalities", level === 0);
  $("codes-children").replaceChildren(...children);
  show(children.length > 0, $("codes-next-part"));
}

function showAnyPrefix(codes) {
  show(codes.length > 1, $("any-prefix-label"));
  if (codes.length < 2) return;
  $("any-prefix").checked = codes.slice(0, -1).every((code) => code === "*");
  $("any-prefix-text").textContent = `Show code ${codes.at(-1)} at this level with any prefix`;
}

let lastPrefix = []; // the prefix before "any prefix" was switched on

function toggleAnyPrefix() {
  const codes = readView().pattern.split("-");
  const prefix = codes.slice(0, -1);
  if ($("any-prefix").checked) {
    lastPrefix = prefix;
    return goToView(codesAddress([...prefix.map(() => "*"), codes.at(-1)]));
  }
  const known = lastPrefix.length === prefix.length ? lastPrefix : shown.items[0]?.codes.slice(0, prefix.length);
  goToView(codesAddress([...(known ?? prefix), codes.at(-1)]));
}

function turnPage(direction) {
  const { pattern, offset } = readView();
  goToView(codesAddress(pattern ? pattern.split("-") : [], Math.max(0, offset + direction * PAGE_SIZE)));
}
