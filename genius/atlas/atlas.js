// The atlas: the code tree opened level by level, single codes side by side, and measures.
// Data becomes text or attribute values, never markup.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const thumbnails = JSON.parse(document.getElementById("thumbnails").textContent);
const MODALITIES = ["images", "texts", "pairs"];
const MIXED = 0.15; // a name whose first word fewer items have than this is shown as mixed
const FIRST = 40; // children and codes shown at once

function el(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else if (name === "width") element.style.width = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const count = (number) => number.toLocaleString("en");
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
const percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
const key = (codes) => codes.join("-");

const children = new Map();
for (const node of data.nodes) {
  const parent = key(node.codes.slice(0, -1));
  if (!children.has(parent)) children.set(parent, []);
  children.get(parent).push(node);
}
const byPrefix = new Map(data.nodes.map((node) => [key(node.codes), node]));

const words = (node) => node.name.map((word) => word[0]).join(", ");
const isMixed = (node) => node.name.length === 0 || node.name[0][1] < MIXED;

/** The name of a node; that of the first level is its modality. */
function nameOf(node) {
  if (node.codes.length === 1) {
    const largest = node.modalities.indexOf(Math.max(...node.modalities));
    return ["Images", "Texts", "Images with text"][largest];
  }
  return words(node) || `code ${node.codes.at(-1)}`;
}

function label(node) {
  const name = el("span", { class: node.codes.length > 1 && isMixed(node) ? "mixed" : null }, nameOf(node));
  return [name, el("span", { class: "code" }, node.codes.map((code) => code ?? "*").join("-"))];
}

function facts(node) {
  const parts = [plural(node.items, "item")];
  if (node.codes.length > 1 && node.name.length) {
    const [word, here, elsewhere] = node.name[0];
    parts.push(`“${word}”: ${percent(here)} of them, ${percent(elsewhere)} of their siblings`);
    if (isMixed(node)) parts.push("mixed content");
  }
  if (node.children) parts.push(plural(node.children, "next code"));
  const present = node.modalities.map((n, i) => (n ? `${count(n)} ${MODALITIES[i]}` : "")).filter(Boolean);
  if (present.length > 1) parts.push(present.join(", "));
  return el("div", { class: "facts" }, parts.map((part) => el("span", {}, part)));
}

function shares(node) {
  const present = node.modalities.map((n, i) => `${percent(n / node.items)} ${MODALITIES[i]}`).join(", ");
  return el(
    "div",
    { class: "shares", role: "img", "aria-label": present, title: present },
    node.modalities.map((n) => el("span", { width: `${(100 * n) / node.items}%` })),
  );
}

function examples(node) {
  return el(
    "ul",
    { class: "examples" },
    node.examples.map((place) => {
      const { id, text } = data.examples[place];
      const image = thumbnails[place];
      const name = text || id;
      return el(
        "li",
        { title: `${id}${text ? `: ${text}` : ""}` },
        image ? el("img", { src: `data:image/webp;base64,${image}`, alt: text ? "" : id, loading: "lazy" }) : null,
        text || !image ? el("span", {}, name) : null,
      );
    }),
  );
}

// The tree

function treeNode(node) {
  const below = children.get(key(node.codes)) ?? [];
  const button = el(
    "button",
    {
      type: "button",
      "data-prefix": key(node.codes),
      class: below.length ? null : "leaf",
      "aria-expanded": below.length ? "false" : null,
      disabled: !below.length,
    },
    label(node),
  );
  const box = el("li", {}, el("div", { class: "node" }, el("div", { class: "head" }, button, shares(node)), facts(node), examples(node)));
  let list = null;
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-expanded") === "true";
    button.setAttribute("aria-expanded", String(!open));
    if (!list && !open) {
      list = nodeList(below, node.children - below.length);
      box.append(list);
    }
    list.hidden = open;
  });
  return box;
}

/** A list of nodes, some at first. missing: number of codes that the page does not describe. */
function nodeList(nodes, missing = 0) {
  const list = el("ul", {});
  const add = (from) => {
    list.append(...nodes.slice(from, from + FIRST).map(treeNode));
    const rest = nodes.length - from - FIRST;
    if (rest > 0) {
      const more = el("button", { type: "button" }, `Show ${count(Math.min(rest, FIRST))} more of ${count(rest)}`);
      const entry = el("li", {}, more);
      more.addEventListener("click", () => {
        entry.remove();
        add(from + FIRST);
        list.children[from + FIRST]?.querySelector("button")?.focus();
      });
      list.append(entry);
    } else if (missing > 0) {
      list.append(el("li", { class: "quiet" }, `${plural(missing, "code")} with fewer items not described here`));
    }
  };
  add(0);
  return list;
}

function treeView() {
  return [
    el("h2", {}, "The code tree"),
    el(
      "p",
      { class: "quiet" },
      "Open a code to see the codes that follow it. Names are the words that set its items apart from their siblings; examples are the items nearest to the code’s vector.",
    ),
    el("div", { class: "tree" }, nodeList(children.get("") ?? [])),
  ];
}

// Single codes, with any prefix

function codesView() {
  const levels = [...new Set(data.codes.map((node) => node.codes.length))];
  const select = el("select", { id: "level" }, levels.map((level) => el("option", { value: level }, `Level ${level}`)));
  const list = el("ul", { class: "codes" });
  const detail = el("section", { "aria-live": "polite", id: "detail" });
  const fill = () => {
    const level = Number(select.value);
    const all = data.codes.filter((node) => node.codes.length === level);
    let shown = FIRST;
    const draw = () => {
      list.replaceChildren(
        ...all.slice(0, shown).map((node) =>
          el(
            "li",
            {},
            el(
              "button",
              { type: "button", "data-code": node.codes.at(-1), click: () => compare(node, detail) },
              label(node),
              el("small", {}, `${plural(node.items, "item")} under ${plural(node.parents, "prefix").replace("prefixs", "prefixes")}`),
            ),
          ),
        ),
      );
      if (shown < all.length) {
        const more = () => {
          shown += FIRST;
          draw();
        };
        list.append(el("li", {}, el("button", { type: "button", click: more }, `Show more of ${count(all.length)}`)));
      }
    };
    draw();
    if (all.length) compare(all[0], detail);
    else detail.replaceChildren();
  };
  select.addEventListener("change", fill);
  fill();
  return [
    el("h2", {}, "The same code under different prefixes"),
    el(
      "p",
      { class: "quiet" },
      "Does a code mean the same wherever it stands? Level 2 is the first level after the modality. Choose a code to see it side by side under its largest prefixes.",
    ),
    el("div", { class: "row" }, el("label", { for: "level" }, "Level "), select),
    list,
    detail,
  ];
}

function compare(node, detail) {
  const code = node.codes.at(-1);
  const level = node.codes.length;
  const places = data.nodes.filter((one) => one.codes.length === level && one.codes.at(-1) === code).slice(0, 12);
  const columns = places.map((place) => {
    const path = place.codes.slice(0, -1).map((_, i) => byPrefix.get(key(place.codes.slice(0, i + 1))));
    const above = path.map((one) => nameOf(one)).join(" › ");
    return el("div", { class: "node" }, el("p", { class: "quiet" }, above), el("h3", {}, label(place)), facts(place), examples(place));
  });
  detail.replaceChildren(
    el("h2", { tabindex: "-1" }, `Code ${code} at level ${level}: ${nameOf(node)}`),
    el("div", { class: "node" }, el("h3", {}, "Under any prefix"), shares(node), facts(node), examples(node)),
    el("h3", { class: "row" }, `Under its ${plural(columns.length, "largest prefix").replace("prefixs", "prefixes")}`),
    el("div", { class: "columns" }, columns),
  );
}

// Measures

function measuresView() {
  const use = data.codes_in_use;
  const levels = table(
    "Use of the codes",
    ["Level", "Codes", "Codes in use", "Perplexity"],
    data.sizes.map((size, i) => [String(i + 1), count(size), percent(use.utilisation[i]), use.perplexity[i].toFixed(1)]),
  );
  const ids = el(
    "p",
    {},
    `${count(use.items)} items have ${count(use.distinct)} different semantic IDs; ${count(use.collisions)} items share theirs with another item, at most ${count(use.largest_bucket)} one ID.`,
  );
  const others = Object.values(data.measures).map((measure) => {
    const columns = ["Level", "Value", "95 % interval", ...(measure.chance ? ["By chance"] : [])];
    const rows = measure.rows.map((row) => [
      row.level,
      row.value.toFixed(1),
      `${row.low.toFixed(1)}–${row.high.toFixed(1)}`,
      ...(measure.chance ? [row.chance === null ? "" : row.chance.toFixed(1)] : []),
    ]);
    return el("div", {}, table(`${measure.title}, ${measure.unit}`, columns, rows), el("p", { class: "quiet" }, measure.about));
  });
  return [el("h2", {}, "Measures"), ids, levels, others].flat();
}

function table(caption, columns, rows) {
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, columns.map((column) => el("th", { scope: "col" }, column)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell))))),
    ),
  );
}

// Views

const VIEWS = { tree: ["Tree", treeView], codes: ["Codes side by side", codesView], measures: ["Measures", measuresView] };

function show(name) {
  for (const button of document.querySelectorAll("#views button"))
    button.setAttribute("aria-pressed", String(button.dataset.view === name));
  document.getElementById("main").replaceChildren(...VIEWS[name][1]());
}

const kinds = Object.values(data.modalities).map((n, i) => (n ? `${count(n)} ${MODALITIES[i]}` : "")).filter(Boolean);
document.getElementById("facts").textContent =
  `${plural(data.items, "item")} (${kinds.join(", ")}), version ${data.version}, IDs of ${data.sizes.length} codes, model ${data.model ?? "not saved"}.`;
for (const [name, [text]] of Object.entries(VIEWS))
  document.getElementById("views").append(el("button", { type: "button", "data-view": name, click: () => show(name) }, text));
show("tree");
