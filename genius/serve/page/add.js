// add.js: the dialog that adds items: one row per file with an editable id and text, sent to the service in jobs.

import { addItems, cancelJob, job as fetchJob } from "./api.js";
import { $, el, icon, show } from "./dom.js";
import { base64, isImage, isText } from "./files.js";
import { closeOverlay, openOverlay } from "./state.js";
import { count, plural } from "./wording.js";

const JOB = { bytes: 20_000_000, items: 500 }; // maximum size of one job
const MAX_NAME = 400; // characters
const POLL = { first: 250, max: 2000 }; // milliseconds

let rows = []; // {file, image, element, id, text, problem}
let working = null; // {job, stopped} while items are being added
let added = []; // ids of the items added last
let onDone = () => {};
let onShow = () => {};

/** done: called when items were added; show: called with their ids to show them. */
export function startAdd({ done, show: showItems }) {
  onDone = done;
  onShow = showItems;
  for (const id of ["add-open", "add-first"]) $(id).addEventListener("click", () => openAdd([]));
  $("add-close").addEventListener("click", () => $("add").close());
  $("add").addEventListener("close", closed);
  $("add-files").addEventListener("change", () => {
    addRows([...$("add-files").files]);
    $("add-files").value = "";
  });
  $("add-start").addEventListener("click", start);
  $("add-cancel").addEventListener("click", stop);
  $("add-show").addEventListener("click", () => {
    onShow(added);
    $("add").close();
  });
}

export async function openAdd(files) {
  if (!$("add").open) {
    openOverlay("add");
    $("add").showModal();
    if (!working) report();
  }
  await addRows(files);
  if (files.length) ($("add-list").querySelector(".add-text") ?? $("add-close")).focus();
  else $("add-files").focus();
}

export const addIsOpen = () => $("add").open;

export function closeAdd() {
  if ($("add").open) $("add").close();
}

function closed() {
  closeOverlay();
  if (working) return; // the job continues; opening the dialog again shows its progress
  rows.forEach(releasePreview);
  rows = [];
  showRows();
  show(false, $("add-working"), $("add-show"));
}

// Rows

async function addRows(files) {
  for (const file of files) {
    const row = { file, image: isImage(file), id: freeName(file), text: "", problem: null };
    if (!row.image) {
      if (isText(file)) row.text = (await file.text()).trim();
      else row.problem = "This file is neither an image nor a text.";
      if (!row.problem && !row.text) row.problem = "The file is empty.";
    }
    row.element = element(row);
    rows.push(row);
  }
  if (files.length) {
    report();
    show(false, $("add-working"), $("add-show"));
  }
  showRows();
}

function freeName(file) {
  const pasted = /^(image|blob)?(\.\w+)?$/.test(file.name);
  const name = (pasted ? `image ${new Date().toISOString().slice(0, 19).replace("T", " ")}` : file.name).slice(
    -MAX_NAME,
  );
  const taken = new Set(rows.map((row) => row.id));
  let free = name;
  for (let number = 2; taken.has(free); number += 1) free = `${name} (${number})`;
  return free;
}

function element(row) {
  const { file } = row;
  return el(
    "li",
    { class: "add-row", data: { file: file.name } },
    el("span", { class: "thumb" }, thumb(row)),
    el(
      "div",
      { class: "add-fields" },
      row.problem ? [el("p", {}, row.id), el("p", { class: "add-problem problem" }, row.problem)] : fields(row),
    ),
    el(
      "button",
      {
        class: "add-remove quiet square",
        type: "button",
        "aria-label": `Remove ${file.name}`,
        onclick: () => removeRow(row),
      },
      icon("close"),
    ),
  );
}

function thumb(row) {
  if (!row.image) return icon("text");
  row.preview ??= URL.createObjectURL(row.file);
  const image = el("img", { src: row.preview, alt: "" });
  image.addEventListener("error", () => image.replaceWith(icon("warning")));
  return image;
}

function fields(row) {
  const { file } = row;
  const changeId = () => {
    row.id = id.value.trim();
    updateStart();
  };
  const id = el("input", {
    class: "add-id",
    type: "text",
    maxlength: "512",
    value: row.id,
    "aria-label": `Item id of ${file.name}`,
    oninput: changeId,
  });
  const changeText = () => {
    row.text = words.value;
    updateStart();
  };
  const hint = row.image ? "Text (optional)" : "Text";
  const words = el("textarea", {
    class: "add-text",
    rows: row.image ? 1 : 3,
    maxlength: "10000",
    "aria-label": `Text of ${file.name}`,
    placeholder: hint,
    oninput: changeText,
  });
  words.value = row.text;
  return [id, words];
}

function removeRow(row) {
  releasePreview(row);
  rows = rows.filter((other) => other !== row);
  showRows();
}

function releasePreview(row) {
  if (row.preview) URL.revokeObjectURL(row.preview);
}

const ready = () => rows.filter((row) => !row.problem && row.id && (row.image || row.text.trim()));

function showRows() {
  $("add-list").replaceChildren(...rows.map((row) => row.element));
  updateStart();
}

function updateStart() {
  $("add-list").inert = Boolean(working);
  const number = ready().length;
  $("add-start").disabled = !number || Boolean(working);
  $("add-start").textContent = number ? `Add ${plural(number, "item")}` : "Add";
}

// Jobs

async function start() {
  const sending = ready();
  if (!sending.length) return;
  const sum = { added: 0, replaced: 0, unchanged: 0, bad: [], done: 0 };
  working = { job: null, stopped: false };
  added = [];
  report();
  show(true, $("add-working"), $("add-cancel"));
  show(false, $("add-show"));
  showRows();
  let problem = null;
  try {
    for (const part of parts(sending)) {
      if (working.stopped) break;
      await runPart(part, sum, sending.length);
    }
  } catch (error) {
    problem = error.message;
  }
  const stopped = working.stopped;
  working = null;
  finish(sending, sum, problem, stopped);
}

function* parts(sending) {
  let part = [];
  let bytes = 0;
  for (const row of sending) {
    const size = row.image ? row.file.size * 1.4 : row.text.length * 3;
    if (part.length && (bytes + size > JOB.bytes || part.length >= JOB.items)) {
      yield part;
      part = [];
      bytes = 0;
    }
    part.push(row);
    bytes += size;
  }
  if (part.length) yield part;
}

async function runPart(part, sum, total) {
  progress(sum.done, total, "Sending …");
  const items = await Promise.all(
    part.map(async (row) => ({
      id: row.id,
      text: row.text.trim() || null,
      image: row.image ? await base64(row.file) : null,
    })),
  );
  const { job } = await addItems(items);
  working.job = job;
  if (working.stopped) await cancelJob(job);
  const state = await follow(job, (now) => progress(sum.done + now.done, total, "Adding …"));
  for (const name of ["added", "replaced", "unchanged"]) sum[name] += state[name] ?? 0;
  sum.bad.push(...(state.bad ?? []));
  sum.done += part.length;
  const bad = new Set((state.bad ?? []).map((one) => one.id));
  if (state.state === "done") added.push(...part.filter((row) => !bad.has(row.id)).map((row) => row.id));
  if (state.state === "failed") throw new Error(state.error ?? "The items could not be added.");
}

async function follow(id, tell) {
  let wait = POLL.first;
  for (;;) {
    const state = await fetchJob(id);
    tell(state);
    if (!["waiting", "running"].includes(state.state)) return state;
    await new Promise((done) => setTimeout(done, wait));
    wait = Math.min(POLL.max, wait * 1.3);
  }
}

async function stop() {
  if (!working) return;
  working.stopped = true;
  $("add-cancel").disabled = true;
  try {
    if (working.job) await cancelJob(working.job);
  } catch {
    // The job has already ended.
  }
  $("add-cancel").disabled = false;
}

function progress(done, total, what) {
  $("add-progress").max = total;
  $("add-progress").value = done;
  $("add-progress-text").textContent = `${what} ${count(done)} of ${count(total)}`;
}

function finish(sending, sum, problem, stopped) {
  const reasons = new Map(sum.bad.map((one) => [one.id, one.reason]));
  for (const row of sending) {
    row.problem = reasons.get(row.id) ?? null;
    if (row.problem) row.element = element(row);
  }
  const good = new Set(added);
  rows.filter((row) => good.has(row.id)).forEach(releasePreview);
  rows = rows.filter((row) => !good.has(row.id));
  showRows();
  show(false, $("add-working"), $("add-cancel"));
  show(added.length > 0, $("add-show"));
  report(summary(sum, stopped), problem);
  if (sum.added || sum.replaced) onDone();
}

function summary(sum, stopped) {
  const parts = [];
  if (sum.added) parts.push(`${plural(sum.added, "item")} added`);
  if (sum.replaced) parts.push(`${count(sum.replaced)} replaced`);
  if (sum.unchanged) parts.push(`${count(sum.unchanged)} unchanged`);
  if (sum.bad.length) parts.push(`${count(sum.bad.length)} could not be added`);
  if (stopped) parts.push("stopped");
  const text = parts.join(", ");
  return text ? `${text[0].toUpperCase()}${text.slice(1)}.` : "";
}

function report(text = "", problem = null) {
  $("add-report").replaceChildren();
  if (text) $("add-report").append(el("p", {}, text));
  if (problem) $("add-report").append(el("p", { class: "problem" }, problem));
}
