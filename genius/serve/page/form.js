// form.js: the search form: words, an image or item to search with, the target and the options.
// `read` turns the form into a query, `write` fills the form from a query.

import { fillImage, item as fetchItem } from "./api.js";
import { $, el, show } from "./dom.js";
import { forQuery, isImage } from "./files.js";
import { pathLabel } from "./names.js";
import { DEFAULTS } from "./state.js";
import { title } from "./wording.js";

const SETTINGS = ["instruction", "mode", "k", "beam", "budget", "where"];
const NUMBERS = ["k", "beam", "budget"];
const MODES = {
  fast: "Generates the modality, then re-ranks the items of it whose codes are nearest to the query by similarity.",
  rerank: "Generates complete IDs, then re-ranks the items with these IDs by similarity.",
  generate: "Generates complete IDs and ranks items by the probability of their ID.",
};

let index = ""; // name of the index, "" for the first one
let image = null; // image file of the query
let branch = ""; // codes below which to search, "" for all
let like = ""; // or id of an item to search with
let preview = null; // blob URL of the image file
let modalities = {}; // number of items of each modality

/** search: called with the query when the form is submitted. */
export function startForm(search) {
  $("q").placeholder = placeholder();
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
  $("remove-branch").addEventListener("click", () => {
    setBranch("");
    $("q").focus();
    search(read());
  });
  $("remove-image").addEventListener("click", () => {
    clearImage();
    $("q").focus();
    search(read());
  });
  $("q").addEventListener("keydown", (event) => {
    if (event.key === "Backspace" && !$("q").value && (image || like)) $("remove-image").click();
  });
  $("mode").addEventListener("change", describeMode);
  $("options").addEventListener("input", showChangedCount);
  $("reset-options").addEventListener("click", () => {
    for (const name of SETTINGS) $(name).value = DEFAULTS[name];
    describeMode();
    showChangedCount();
  });
  document.addEventListener("pointerdown", (event) => {
    if (!event.target.closest("#options")) $("options").open = false;
  });
  $("index").addEventListener("change", () => {
    index = $("index").selectedIndex === 0 ? "" : $("index").value;
    if (like) clearImage(); // the item belongs to the previous index
    setBranch(""); // so does the branch
    search(read());
  });
}

const targets = () => document.getElementsByName("target");
const hasContent = () => Boolean($("q").value.trim() || image || like);

/** The query in the form. */
export function read() {
  const query = { ...DEFAULTS, index, q: $("q").value.trim(), like, image, branch };
  query.target = [...targets()].find((radio) => radio.checked).value;
  for (const name of SETTINGS) query[name] = NUMBERS.includes(name) ? number(name) : $(name).value.trim();
  return query;
}

function number(name) {
  const { value, min, max } = $(name);
  if (!value) return DEFAULTS[name];
  return Math.min(Number(max), Math.max(Number(min), Math.round(Number(value)))) || DEFAULTS[name];
}

/** Fills the form from a query. */
export function write(query) {
  index = query.index;
  if ($("q").value.trim() !== query.q) $("q").value = query.q;
  for (const radio of targets()) radio.checked = radio.value === query.target;
  for (const name of SETTINGS) $(name).value = query[name];
  setBranch(query.branch);
  describeMode();
  showChangedCount();
  if (query.image !== image || query.like !== like) {
    if (query.image) showFile(query.image);
    else if (query.like) useLike(query.like);
    else clearImage();
  }
}

/** Searches only below these codes; "" searches everything. */
export function setBranch(pattern) {
  branch = pattern;
  showBranch();
}

/** Shows the branch with its name, which may come later than the branch. */
export function showBranch() {
  $("branch-name").textContent = branch ? `Only in: ${pathLabel(branch.split("-"))}` : "";
  $("branch").title = branch ? `Codes ${branch}` : "";
  show(Boolean(branch), $("branch"));
}

function describeMode() {
  $("mode-help").textContent = MODES[$("mode").value];
  $("budget").disabled = $("mode").value !== "fast";
}

function showChangedCount() {
  const changed = SETTINGS.filter((name) => $(name).value.trim() !== String(DEFAULTS[name])).length;
  $("options-changed").textContent = changed;
  $("options-changed").setAttribute("aria-label", `${changed} changed`);
  show(changed > 0, $("options-changed"));
}

/** Shows the names of the indexes and the metadata fields of the current one. */
export function describeIndexes(indexes, current) {
  show(indexes.length > 1, $("index"));
  $("index").replaceChildren(...indexes.map(({ name }) => el("option", { value: name }, name)));
  $("index").value = current.name;
  modalities = current.modalities ?? {};
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
  const quoted = /^[A-Za-z_]\w*$/.test(name) ? name : `\`${name}\``;
  const [start, end] = [where.selectionStart, where.selectionEnd];
  const before = where.value.slice(0, start);
  where.setRangeText(`${before && !/[\s(]$/.test(before) ? " " : ""}${quoted} `, start, end, "end");
  where.focus();
  showChangedCount();
}

// The image or item to search with

/** Makes a file the image of the query. Files that are not images are ignored. */
export async function useImage(file) {
  if (!isImage(file)) return;
  showFile(await forQuery(file));
  preferTarget(modalities.image || !modalities["image,text"] ? "image" : "image,text");
}

/** Chooses a target, unless the user has chosen one or has written an instruction. */
function preferTarget(modality) {
  const [anything] = targets();
  if (!anything.checked || $("instruction").value.trim()) return;
  for (const radio of targets()) radio.checked = radio.value === modality;
}

/** Puts an item into the search box, for the user to add words. */
export function startComposing(item) {
  useLike(item.id, item);
  preferTarget(item.modality);
  $("q").value = "";
}

function showFile(file) {
  clearImage();
  image = file;
  preview = URL.createObjectURL(file);
  $("query-thumb").src = preview;
  showChip(file.name && !/^(image|blob)\b/.test(file.name) ? file.name : "Your image", true);
}

/** Makes an item the query. known: the item, if it is already loaded. */
async function useLike(id, known = null) {
  clearImage();
  like = id;
  showChip("Similar to …", false);
  let item = known;
  try {
    item ??= await fetchItem(id);
  } catch {
    if (like === id) showChip(`Similar to ${id}`, false); // the search reports the error
    return;
  }
  if (like !== id) return;
  if (item.image_url) fillImage($("query-thumb"), item.image_url, 128);
  showChip(`Similar to ${title(item)}`, Boolean(item.image_url));
}

function showChip(name, hasImage) {
  $("query-name").textContent = name;
  $("query-image").title = name;
  show(hasImage, $("query-thumb"));
  show(!hasImage, $("query-mark"));
  show(true, $("query-image"));
  $("q").placeholder = hasImage ? "Add words, such as: in red" : placeholder();
}

const placeholder = () => (matchMedia("(hover: none)").matches ? "Describe it" : "Describe it, or drop an image");

function clearImage() {
  image = null;
  like = "";
  if (preview) URL.revokeObjectURL(preview);
  preview = null;
  $("query-thumb").removeAttribute("src");
  show(false, $("query-image"));
  $("q").placeholder = placeholder();
}
