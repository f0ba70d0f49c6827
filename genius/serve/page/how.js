// how.js: the panel that explains how the results were found: the beams as a tree, the prefixes that results share, the
// number of ranked candidates and the time of each stage.

import { chips, hasPrefix } from "./chips.js";
import { image } from "./cards.js";
import { $, el, show } from "./dom.js";
import { pathLabel } from "./names.js";
import { codesAddress } from "./state.js";
import { buildTree, describe, drawTree, listTree } from "./tree.js";
import { count, milliseconds, percent, plural, prefixName } from "./wording.js";

const OPEN = "genius.how";
const GROUPS = 5;
const THUMBS = 8;
const STAGES = {
  queue: "waiting in the queue",
  prepare: "preparing words and image",
  encode: "encoding them as vectors",
  generate: "generating IDs, or finding the nearest codes",
  rerank: "ranking the candidates by similarity",
  read: "reading the items",
};

const wide = matchMedia("(min-width: 1100px)");

export function startHow() {
  $("how-toggle").addEventListener("click", () => setOpen($("how").hidden, true));
  setOpen(remembered() ?? wide.matches, false);
  new ResizeObserver(() => $("how").style.setProperty("--height", `${$("how").offsetHeight}px`)).observe($("how"));
}

function remembered() {
  try {
    const value = localStorage.getItem(OPEN);
    return value === null || !wide.matches ? null : value === "open"; // always closed at first on a phone
  } catch {
    return null;
  }
}

function setOpen(open, keep) {
  show(open, $("how"));
  $("how-toggle").setAttribute("aria-expanded", String(open));
  $("answer").classList.toggle("with-how", open);
  if (!keep) return;
  try {
    localStorage.setItem(OPEN, open ? "open" : "closed");
  } catch {
    // Without storage the choice lasts until the page is closed.
  }
}

export function showHow(answer, query) {
  $("how").replaceChildren(...beams(answer, query), ...sharedPrefixes(answer.hits), ...effort(answer, query));
}

function beams(answer, query) {
  if (!answer.tree?.branches.length) return [];
  const tree = buildTree(answer.tree.branches, answer.hits);
  const all = answer.tree.branches.length;
  const info = el("p", { id: "tree-info" }, describe(tree.root));
  const drawn = tree.omitted > 0 ? ` The tree shows ${all - tree.omitted} of ${all} beams.` : "";
  return [
    el("h2", {}, query.mode === "fast" ? "Candidates by their first codes" : "Beam search"),
    el("p", { class: "lead" }, `${explanation(answer.tree, query.mode)} Larger dots are more likely.${drawn}`),
    drawTree(tree, (text) => (info.textContent = text)),
    info,
    el("details", { class: "as-list" }, el("summary", {}, "Show as a list"), listTree(tree)),
  ];
}

/** What the model did. */
function explanation({ branches, levels }, mode) {
  const depth = Math.max(...branches.map((branch) => branch.codes.length));
  const part = depth === 1 ? "the first code (the modality)" : `the first ${depth} of ${levels} codes`;
  const codes = depth === levels ? `all ${levels} codes` : part;
  const ranked = {
    generate: "Items are ranked by the probability of their ID.",
    rerank: "The items with these IDs were re-ranked by similarity.",
    fast: "The items nearest by all their codes, counted here by these prefixes, were re-ranked by similarity.",
  }[mode];
  return `The decoder scored ${codes} of semantic IDs. ${ranked}`;
}

/** The longest prefixes shared by the same two or more results, with these results; most results first. */
function groups(hits) {
  const found = new Map();
  for (const hit of hits) {
    for (let length = 2; length <= hit.codes.length; length += 1) {
      const prefix = hit.codes.slice(0, length).join("-");
      if (!found.has(prefix)) found.set(prefix, []);
      found.get(prefix).push(hit);
    }
  }
  const several = [...found].filter(([, members]) => members.length > 1);
  const longest = several.filter(
    ([prefix, members]) =>
      !several.some(
        ([other, others]) => other !== prefix && hasPrefix(other, prefix) && others.length === members.length,
      ),
  );
  return longest.sort((first, second) => second[1].length - first[1].length || second[0].length - first[0].length);
}

function sharedPrefixes(hits) {
  const all = groups(hits);
  const lead = all.length
    ? "Results whose semantic IDs start with the same codes. Point at a code to highlight them."
    : hits.length > 1
      ? "No two results share more than their modality."
      : "There are too few results to compare.";
  const rows = all.slice(0, GROUPS).map(([prefix, members]) => {
    const codes = prefix.split("-").map(Number);
    return el(
      "li",
      { data: { shared: prefix } },
      chips(codes, { shared: codes.length }),
      pathLabel(codes).includes(" › ") ? el("span", { class: "code-name" }, pathLabel(codes)) : null,
      el(
        "a",
        {
          class: "members",
          href: codesAddress(codes),
          data: { prefix },
          "aria-label": `${plural(members.length, "result")} share ${prefixName(codes)}`,
        },
        members
          .filter((hit) => hit.image_url)
          .slice(0, THUMBS)
          .map((hit) => image(hit, 64, { alt: "", fallback: null })),
        el("span", {}, `${members.length} of ${hits.length}`),
      ),
    );
  });
  return [
    el("h2", {}, "Shared codes"),
    el("p", { class: "lead" }, lead),
    el("ul", { class: "shared-codes", id: "shared" }, rows),
    el(
      "p",
      { class: "legend" },
      el("span", { class: "code shared", vars: { level: 1 } }, "17"),
      " shared with another result ",
      el("span", { class: "code generated", vars: { level: 1 } }, "17"),
      " generated by the model",
    ),
  ];
}

function effort(answer, query) {
  const { total = 0, ...seconds } = answer.seconds;
  const stages = Object.keys(STAGES).filter((name) => seconds[name] !== undefined);
  const whole = stages.reduce((sum, name) => sum + seconds[name], 0) || 1;
  const bar = el(
    "div",
    {
      class: "timing",
      id: "timing",
      role: "img",
      "aria-label": stages.map((name) => `${name} ${milliseconds(seconds[name])}`).join(", "),
    },
    stages.map((name, i) =>
      el("span", {
        data: { stage: name, ms: (seconds[name] * 1000).toFixed(3) },
        title: `${name}: ${milliseconds(seconds[name])}, ${STAGES[name]}`,
        vars: { share: seconds[name] / whole, stage: i },
      }),
    ),
  );
  const legend = el(
    "dl",
    { class: "stages" },
    stages.map((name, i) =>
      el(
        "div",
        { title: STAGES[name], vars: { stage: i } },
        el("dt", {}, name),
        el("dd", {}, milliseconds(seconds[name])),
      ),
    ),
  );
  const share = percent(answer.items ? answer.candidates / answer.items : 0);
  const candidates = `${count(answer.candidates)} of ${plural(answer.items, "item")} (${share})`;
  const together =
    answer.batch > 1
      ? ` The query was encoded together with ${plural(answer.batch - 1, "other query", "other queries")}.`
      : "";
  const ranked = query.mode === "generate" ? "have one of the generated IDs" : "were ranked by similarity to the query";
  return [
    el("h2", {}, "Candidates and time"),
    el(
      "p",
      { class: "lead", id: "candidates" },
      `${candidates} ${ranked}, in ${milliseconds(total || whole)}.${together}`,
    ),
    bar,
    legend,
  ];
}
