// files.js: files that people choose, drop or paste. Knows which are images and which are texts, how to make a large
// image small enough to ask with, and how to read a file. Knows nothing of the service.

const LARGE = 3_000_000; // bytes: larger images are made smaller before they are sent as a query
const SIDE = 1024; // pixels: more than any encoder looks at
const TEXTS = /\.(txt|md|text)$/i;

export const isImage = (file) => file.type.startsWith("image/");
export const isText = (file) => file.type.startsWith("text/") || TEXTS.test(file.name);

/** The image itself, or a smaller copy of a large one. Animations and odd formats are left as they are. */
export async function forQuery(file) {
  if (file.size <= LARGE || file.type === "image/gif") return file;
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, SIDE / Math.max(bitmap.width, bitmap.height));
    const canvas = Object.assign(document.createElement("canvas"), {
      width: Math.max(1, Math.round(bitmap.width * scale)),
      height: Math.max(1, Math.round(bitmap.height * scale)),
    });
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    bitmap.close();
    const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
    return blob ? new File([blob], file.name, { type: blob.type }) : file;
  } catch {
    return file; // the service says what is wrong with it
  }
}

/** A file's bytes in base64. */
export function base64(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => failed(new Error("The file cannot be read."));
    reader.readAsDataURL(file);
  });
}

/** The files in a drop or a paste. */
export const filesOf = (transfer) => [...(transfer?.files ?? [])];

/** Whether a drag brings files, as far as the browser tells before they are dropped. */
export const bringsFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

// Dropping and pasting, anywhere on the page

/** given: what to do with the files. title: what the page says while they are dragged over it. */
export function onFiles(given, zone) {
  let depth = 0;
  const over = (visible) => (zone.hidden = !visible);
  const leave = () => over((depth = 0));
  addEventListener("dragenter", (event) => {
    if (!bringsFiles(event)) return;
    event.preventDefault();
    depth += 1;
    over(true);
  });
  addEventListener("dragover", (event) => {
    if (bringsFiles(event)) event.preventDefault();
  });
  addEventListener("dragleave", () => {
    depth = Math.max(0, depth - 1);
    if (!depth) leave();
  });
  addEventListener("drop", (event) => {
    if (!bringsFiles(event)) return;
    event.preventDefault();
    leave();
    const files = filesOf(event.dataTransfer);
    if (files.length) given(files, "dropped");
  });
  document.addEventListener("paste", (event) => {
    const files = filesOf(event.clipboardData).filter(isImage);
    if (!files.length) return;
    event.preventDefault();
    given(files, "pasted");
  });
}
