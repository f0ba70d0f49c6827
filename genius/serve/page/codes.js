// codes.js: the code view: all items whose semantic ID starts with a prefix, the codes that come next, as tiles or as a
// map, and a breadcrumb.

import { codes as fetchCodes } from "./api.js";
import { card, fillGrid, image, skeletons } from "./cards.js";
import { $, el, show } from "./dom.js";
import { hideMap, redrawMap, showMap, startMap } from "./map.js";
import { codeLabel, learnNames, nameOf, purityOf } from "./names.js";
import { codesAddress, goToView, leaveView, readView } from "./state.js";
import { count, plural, title } from "./wording.js";

const PAGE_SIZE = 48;
const CHILDREN = { false: 60, true: 300 }; // codes shown as tiles, and in a map
const NAMES_POLL = 1500; // milliseconds between requests while names are being made
const NAMES_TRIES = 40;

let request = null; // AbortController of the running request
let shown = { items: [] };

export const codeItems = () => shown.items;

/** searchInside: called with a pattern, to search below it. */
export function startCodes(searchInside) {
  startMap();
  $("codes-inside").addEventListener("click", () => searchInside(readView().pattern));
  for (const map of [false, true]) {
    $(map ? "codes-as-map" : "codes-as-tiles").addEventListener("click", () => {
      const { pattern } = readView();
      goToView(codesAddress(split(pattern), 0, map));
    });
  }
  $("codes-close").addEventListener("click", leaveView);
  $("any-prefix").addEventListener("change", toggleAnyPrefix);
  $("codes-previous").addEventListener("click", () => turnPage(-1));
  $("codes-next").addEventListener("click", () => turnPage(1));
}

const split = (pattern) => (pattern ? pattern.split("-") : []);

/** Shows a view. pattern: "0-17", "*-17" with any code at the first level, or "" for the root. */
export async function showCodes({ pattern, offset, map }) {
  request?.abort();
  request = new AbortController();
  const { signal } = request;
  const codes = split(pattern);
  showBreadcrumb(codes, map);
  $("codes-as-map").setAttribute("aria-pressed", String(map));
  $("codes-as-tiles").setAttribute("aria-pressed", String(!map));
  show(codes.length > 0, $("codes-inside"));
  if (!map) hideMap();
  $("codes-title").textContent = heading(codes);
  $("codes-lead").textContent = "Loading …";
  $("codes-items").replaceChildren(...skeletons(8));
  show(false, $("codes-next-part"), $("codes-paging"), $("any-prefix-label"), $("codes-items-title"));
  try {
    const page = await fetchCodes(pattern, { limit: PAGE_SIZE, offset, children: CHILDREN[map] }, signal);
    learnNames(page.names);
    if (signal.aborted) return;
    showPage(page, codes, offset, map);
    if (map) await showMap(page, codes, signal);
    if (!page.names_ready) awaitNames(pattern, map, signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    shown = { items: [] };
    $("codes-lead").textContent = error.message;
    $("codes-items").replaceChildren();
  }
}

/** Asks again until the service has made names, then shows them. */
async function awaitNames(pattern, map, signal) {
  for (let tries = 0; tries < NAMES_TRIES; tries += 1) {
    await new Promise((resolve) => setTimeout(resolve, NAMES_POLL));
    if (signal.aborted) return;
    try {
      const page = await fetchCodes(pattern, { limit: 1, children: CHILDREN[map] }, signal);
      if (!page.names_ready) continue;
      learnNames(page.names);
      const codes = split(pattern);
      if (map && !codes.length) await showMap(page, codes, signal);
      showBreadcrumb(codes, map);
      $("codes-title").textContent = heading(codes);
      showChildren(page, codes, map);
      redrawMap();
    } catch {
      // The page works with numbers.
    }
    return;
  }
}

function heading(codes) {
  if (!codes.length) return "All codes";
  const last = codes.at(-1);
  const name = nameOf(codes);
  const number = name ? `${name} (code ${last})` : `Code ${last}`;
  if (codes.slice(0, -1).includes("*")) return `${number} at level ${codes.length}, with any prefix`;
  return codes.length === 1 ? codeLabel(codes) : name ? name : `${number} at level ${codes.length}`;
}

function showBreadcrumb(codes, map) {
  const steps = [{ label: "All codes", codes: [] }];
  codes.forEach((code, level) => {
    const prefix = codes.slice(0, level + 1);
    steps.push({ label: codeLabel(prefix), codes: prefix, level });
  });
  const links = steps.map((step, i) =>
    el(
      "li",
      {},
      el(
        "a",
        {
          class: step.level === undefined || step.codes.at(-1) === "*" ? "" : "code shared",
          href: codesAddress(step.codes, 0, map),
          title: step.level ? `Code ${step.codes.at(-1)} at level ${step.level + 1}` : null,
          "aria-current": i === steps.length - 1 ? "page" : null,
          vars: { level: step.level ?? 0 },
        },
        step.label,
      ),
    ),
  );
  $("breadcrumb").replaceChildren(el("ol", {}, links));
}

function showPage(page, codes, offset, map) {
  shown = page;
  const introduction = codes.length
    ? ""
    : "Every item has a semantic ID, a sequence of codes. The first code is the modality; similar items share the " +
      "codes after it. ";
  const total = `${plural(page.total, "item")} with ${plural(page.ids, "different semantic ID")}.`;
  const fits = nameOf(codes) ? ` ${purityOf(codes)}` : "";
  $("codes-lead").textContent = `${introduction}${page.total ? total + fits : "No item has these codes."}`;
  showChildren(page, codes, map);
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

function showChildren(page, codes, map) {
  const level = codes.length;
  const children = page.children.map(({ code, items, example }) => {
    const pattern = [...codes, `${code}`];
    const name = level ? nameOf(pattern) : null;
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
          title: purityOf(pattern) || null,
          "aria-label": `${name ? `${name}, code` : "Code"} ${level ? code : codeLabel(pattern)}, ${plural(items, "item")}`,
        },
        el("span", { class: "face" }, face),
        name ? el("span", { class: "code-name" }, name) : null,
        el("span", { class: "code shared" }, level ? `${code}` : codeLabel(pattern)),
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
  show(children.length > 0 && !map, $("codes-next-part"));
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
  goToView(codesAddress(split(pattern), Math.max(0, offset + direction * PAGE_SIZE)));
}
