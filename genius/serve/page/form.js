// form.js: the search form: words, an image or an item to start from, what to get back, and the options.
// Turns what is set in it into a query and a query into what is set in it. Does not search.

import { fillImage, item as askItem } from "./api.js";
import { $, el, show } from "./dom.js";
import { forQuery, isImage } from "./files.js";
import { DEFAULTS } from "./state.js";
import { title } from "./wording.js";

const SETTINGS = ["instruction", "mode", "k", "beam", "budget", "where"];
const NUMBERS = ["k", "beam", "budget"];
const MODES = {
  fast: "Writes the first codes of the likeliest IDs, then compares all items below them with the query.",
  rerank: "Writes whole IDs, then compares their items with the query.",
  generate: "Writes whole IDs and ranks by their probability alone; no item is compared.",
};

let index = ""; // the index in use, as the address names it
let image = null; // the file in the query
let like = ""; // or the id of an item
let preview = null; // the file's blob URL
let kinds = {}; // how many items of each kind the index has

/** search: what to do when the form is sent. */
export function startForm(search) {
  $("q").placeholder = invitation();
  $("search").addEventListener("submit", (event) => {
    event.preventDefault();
    $("options").open = false;
    search(read());
  });
  for (const radio of targets()) radio.addEventListener("change", () => hasContent() && search(read()));
  $("choose-image").addEventListener("click", () => $("image").click());
  $("image").addEventListener("change", async () => {
    const [file] = $("image").files;
    if (!file) return;
    await useImage(file);
    $("image").value = "";
    search(read());
  });
  $("remove-image").addEventListener("click", () => {
    useNothing();
    $("q").focus();
    search(read());
  });
  $("q").addEventListener("keydown", (event) => {
    if (event.key === "Backspace" && !$("q").value && (image || like)) $("remove-image").click();
  });
  $("mode").addEventListener("change", explainMode);
  $("options").addEventListener("input", countChanged);
  $("reset-options").addEventListener("click", () => {
    for (const name of SETTINGS) $(name).value = DEFAULTS[name];
    explainMode();
    countChanged();
  });
  document.addEventListener("pointerdown", (event) => {
    if (!event.target.closest("#options")) $("options").open = false;
  });
  $("index").addEventListener("change", () => {
    index = $("index").selectedIndex === 0 ? "" : $("index").value;
    if (like) useNothing(); // items belong to their index
    search(read());
  });
}

const targets = () => document.getElementsByName("target");
const hasContent = () => Boolean($("q").value.trim() || image || like);

/** The query as the form has it. */
export function read() {
  const query = { ...DEFAULTS, index, q: $("q").value.trim(), like, image };
  query.target = [...targets()].find((radio) => radio.checked).value;
  for (const name of SETTINGS) query[name] = NUMBERS.includes(name) ? number(name) : $(name).value.trim();
  return query;
}

function number(name) {
  const { value, min, max } = $(name);
  return Math.min(Number(max), Math.max(Number(min), Math.round(Number(value)))) || DEFAULTS[name];
}

/** Sets the form to a query. */
export function write(query) {
  index = query.index;
  if ($("q").value.trim() !== query.q) $("q").value = query.q;
  for (const radio of targets()) radio.checked = radio.value === query.target;
  for (const name of SETTINGS) $(name).value = query[name];
  explainMode();
  countChanged();
  if (query.image !== image || query.like !== like) {
    if (query.image) showFile(query.image);
    else if (query.like) useLike(query.like);
    else useNothing();
  }
}

function explainMode() {
  $("mode-help").textContent = MODES[$("mode").value];
  $("budget").disabled = $("mode").value !== "fast";
}

function countChanged() {
  const changed = SETTINGS.filter((name) => $(name).value.trim() !== String(DEFAULTS[name])).length;
  $("options-changed").textContent = changed;
  $("options-changed").setAttribute("aria-label", `${changed} changed`);
  show(changed > 0, $("options-changed"));
}

/** What the index has to say about itself: its fields, and the other indexes there are. */
export function describeIndexes(indexes, current) {
  show(indexes.length > 1, $("index"));
  $("index").replaceChildren(...indexes.map(({ name }) => el("option", { value: name }, name)));
  $("index").value = current.name;
  kinds = current.modalities ?? {};
  const fields = Object.entries(current.fields ?? {}).filter(([name]) => name !== "metadata");
  $("fields").replaceChildren(
    el("small", {}, "Fields: "),
    ...fields.map(([name, type]) =>
      el(
        "button",
        { type: "button", class: "field", title: `${type}: insert into the filter`, onclick: () => insertField(name) },
        name,
        el("small", {}, type),
      ),
    ),
  );
}

function insertField(name) {
  const where = $("where");
  const word = /^[A-Za-z_]\w*$/.test(name) ? name : `\`${name}\``;
  const [start, end] = [where.selectionStart, where.selectionEnd];
  const before = where.value.slice(0, start);
  where.setRangeText(`${before && !/[\s(]$/.test(before) ? " " : ""}${word} `, start, end, "end");
  where.focus();
  countChanged();
}

// What the query starts from beside words

/** Makes a file the query's image; files that are no images are refused by returning false. */
export async function useImage(file) {
  if (!isImage(file)) return false;
  showFile(await forQuery(file));
  preferTarget(kinds.image || !kinds["image,text"] ? "image" : "image,text");
  return true;
}

/** Images are compared best with one kind of thing: where nothing was chosen, choose what is most likely meant. */
function preferTarget(kind) {
  const [anything] = targets();
  if (!anything.checked || $("instruction").value.trim()) return;
  for (const radio of targets()) radio.checked = radio.value === kind;
}

/** Puts an item into the box, to be searched with once words have been added. */
export function startComposing(item) {
  useLike(item.id, item);
  preferTarget(item.modality);
  $("q").value = "";
}

function showFile(file) {
  useNothing();
  image = file;
  preview = URL.createObjectURL(file);
  $("query-thumb").src = preview;
  chip(file.name && !/^(image|blob)\b/.test(file.name) ? file.name : "Your image", true);
}

/** Makes an item what the query starts from. known: the item, if the page has it. */
async function useLike(id, known = null) {
  useNothing();
  like = id;
  chip("Similar to …", false);
  let item = known;
  try {
    item ??= await askItem(id);
  } catch {
    if (like === id) chip(`Similar to ${id}`, false); // the search itself says what is wrong
    return;
  }
  if (like !== id) return;
  if (item.image_url) fillImage($("query-thumb"), item.image_url, 128);
  chip(`Similar to ${title(item)}`, Boolean(item.image_url));
}

function chip(name, hasImage) {
  $("query-name").textContent = name;
  $("query-image").title = name;
  show(hasImage, $("query-thumb"));
  show(!hasImage, $("query-mark"));
  show(true, $("query-image"));
  $("q").placeholder = hasImage ? "Add words, such as: in red" : invitation();
}

const invitation = () => (matchMedia("(hover: none)").matches ? "Describe it" : "Describe it, or drop an image");

function useNothing() {
  image = null;
  like = "";
  if (preview) URL.revokeObjectURL(preview);
  preview = null;
  $("query-thumb").removeAttribute("src");
  show(false, $("query-image"));
  $("q").placeholder = invitation();
}
