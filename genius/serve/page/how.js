// how.js: the panel that says how an answer was found: the beam as a tree, the codes that results share, the time each
// stage took and how much was looked at. Knows the service's answer.

import { chips, hasPrefix } from "./chips.js";
import { image } from "./cards.js";
import { $, el, show } from "./dom.js";
import { codesAddress } from "./state.js";
import { describe, draw, list, plant } from "./tree.js";
import { count, milliseconds, percent, plural, prefixName } from "./wording.js";

const OPEN = "genius.how";
const GROUPS = 5;
const THUMBS = 8;
const STAGES = {
  queue: "waiting for its turn",
  prepare: "reading words and image",
  encode: "turning them into a vector",
  generate: "writing IDs code by code",
  rerank: "comparing the items found",
  read: "fetching the results",
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
    return value === null || !wide.matches ? null : value === "open"; // on a phone it always begins closed
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
    // Without storage the choice lasts until the page is left.
  }
}

export function showHow(answer, query) {
  $("how").replaceChildren(...beam(answer, query), ...shared(answer.hits), ...effort(answer, query));
}

function beam(answer, query) {
  if (!answer.tree?.branches.length) return [];
  const tree = plant(answer.tree.branches, answer.hits);
  const all = answer.tree.branches.length;
  const info = el("p", { id: "tree-info" }, describe(tree.root));
  const more = tree.left > 0 ? ` The ${all - tree.left} most telling of ${all} branches are drawn.` : "";
  return [
    el("h2", {}, "The beam"),
    el("p", { class: "lead" }, `${written(answer, query)}${more}`),
    draw(tree, (text) => (info.textContent = text)),
    info,
    el("details", { class: "as-list" }, el("summary", {}, "The same as a list"), list(tree)),
  ];
}

function written(answer, query) {
  const depth = Math.max(...answer.tree.branches.map((branch) => branch.codes.length));
  const end =
    query.mode === "generate"
      ? "the likeliest IDs are the answer"
      : "the items below, and the nearest beside them, were compared with the query";
  const part =
    depth === answer.tree.levels
      ? `all ${depth} codes of IDs`
      : `the first ${depth === 1 ? "code" : `${depth} codes`} of IDs, which have ${answer.tree.levels},`;
  return `The model wrote ${part} from left to right; ${end}. Larger dots are likelier.`;
}

/** Beginnings of IDs that two or more results have, each with its results; none that says the same as a longer one. */
export function groups(hits) {
  const found = new Map();
  for (const hit of hits) {
    for (let length = 2; length <= hit.codes.length; length += 1) {
      const prefix = hit.codes.slice(0, length).join("-");
      if (!found.has(prefix)) found.set(prefix, []);
      found.get(prefix).push(hit);
    }
  }
  const several = [...found].filter(([, members]) => members.length > 1);
  const telling = several.filter(
    ([prefix, members]) =>
      !several.some(
        ([other, those]) => other !== prefix && hasPrefix(other, prefix) && those.length === members.length,
      ),
  );
  return telling.sort((first, second) => second[1].length - first[1].length || second[0].length - first[0].length);
}

function shared(hits) {
  const all = groups(hits);
  const lead = all.length
    ? "Results whose IDs begin alike. Point at a code to see them in the grid."
    : hits.length > 1
      ? "No two results share more than their kind."
      : "There are not enough results to compare.";
  const rows = all.slice(0, GROUPS).map(([prefix, members]) => {
    const codes = prefix.split("-").map(Number);
    return el(
      "li",
      { data: { shared: prefix } },
      chips(codes, { shared: codes.length }),
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
          .map((hit) => image(hit, 64, { alt: "", instead: null })),
        el("span", {}, `${members.length} of ${hits.length}`),
      ),
    );
  });
  return [
    el("h2", {}, "Codes the results share"),
    el("p", { class: "lead" }, lead),
    el("ul", { class: "shared-codes", id: "shared" }, rows),
    el(
      "p",
      { class: "legend" },
      el("span", { class: "code shared", vars: { level: 1 } }, "17"),
      " shared with another result ",
      el("span", { class: "code written", vars: { level: 1 } }, "17"),
      " written by the decoder",
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
  const looked = `${count(answer.candidates)} of ${plural(answer.items, "item")} (${share})`;
  const together =
    answer.batch > 1
      ? ` It was encoded together with ${plural(answer.batch - 1, "other query", "other queries")}.`
      : "";
  const did = query.mode === "generate" ? "lie under the IDs written" : "were compared with the query";
  return [
    el("h2", {}, "Time and effort"),
    el("p", { class: "lead", id: "looked-at" }, `${looked} ${did}, in ${milliseconds(total || whole)}.${together}`),
    bar,
    legend,
  ];
}
