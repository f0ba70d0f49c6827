// files.js: files that are chosen, dropped or pasted.

const LARGE_IMAGE = 3_000_000; // bytes; larger query images are scaled down before they are sent
const QUERY_SIDE = 1024; // pixels; more than any encoder uses
const TEXT_NAMES = /\.(txt|md|text)$/i;

export const isImage = (file) => file.type.startsWith("image/");
export const isText = (file) => file.type.startsWith("text/") || TEXT_NAMES.test(file.name);

/** The image file, scaled down if it is large. GIFs and files that the browser cannot decode stay as they are. */
export async function forQuery(file) {
  if (file.size <= LARGE_IMAGE || file.type === "image/gif") return file;
  try {
    const bitmap = await createImageBitmap(file);
    const scale = Math.min(1, QUERY_SIDE / Math.max(bitmap.width, bitmap.height));
    const canvas = Object.assign(document.createElement("canvas"), {
      width: Math.max(1, Math.round(bitmap.width * scale)),
      height: Math.max(1, Math.round(bitmap.height * scale)),
    });
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    bitmap.close();
    const blob = await new Promise((done) => canvas.toBlob(done, "image/jpeg", 0.92));
    return blob ? new File([blob], file.name, { type: blob.type }) : file;
  } catch {
    return file; // the service reports what is wrong with it
  }
}

/** The content of a file in base64. */
export function base64(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => failed(new Error("The file cannot be read."));
    reader.readAsDataURL(file);
  });
}

const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

/**
 * Accepts files that are dropped or pasted anywhere on the page.
 * receive: called with the files and "dropped" or "pasted"; zone: element to show while files are dragged.
 */
export function onFiles(receive, zone) {
  let depth = 0; // dragenter and dragleave fire for every nested element
  const enter = (change) => {
    depth = Math.max(0, depth + change);
    zone.hidden = depth === 0;
  };
  addEventListener("dragenter", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    enter(1);
  });
  addEventListener("dragover", (event) => {
    if (hasFiles(event)) event.preventDefault();
  });
  addEventListener("dragleave", () => enter(-1));
  addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    enter(-depth);
    const files = [...event.dataTransfer.files];
    if (files.length) receive(files, "dropped");
  });
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])].filter(isImage);
    if (!files.length) return;
    event.preventDefault();
    receive(files, "pasted");
  });
}
