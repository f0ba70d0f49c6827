// api.js: requests to the service: routes, errors, the API key and images.

const BASE = new URL("../", import.meta.url); // the page's files are one level below the root of the service
const KEY = "genius.key";
const KEPT_IMAGES = 400;

let index = ""; // name of the current index
let askForKey = null; // (problem with the last key) -> Promise<string | null>
let asking = null; // the promise of the open key dialog

/** An error whose message can be shown. status 0: the service cannot be reached. */
export class ApiError extends Error {
  constructor(status, message, { code = "", field = null, retryAfter = null } = {}) {
    super(message);
    Object.assign(this, { status, code, field, retryAfter });
  }
}

export function useIndex(name) {
  index = name;
}

export function onKeyNeeded(ask) {
  askForKey = ask;
}

function key() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function keepKey(value) {
  try {
    sessionStorage.setItem(KEY, value);
  } catch {
    // Without storage, the next request asks for the key again.
  }
}

function address(path, parameters = {}) {
  const url = new URL(path.replace(/^\//, ""), BASE);
  if (index && !url.searchParams.has("index")) url.searchParams.set("index", index);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  return url;
}

function headers(more = {}) {
  const value = key();
  return value ? { ...more, Authorization: `Bearer ${value}` } : more;
}

async function send(path, { method = "GET", json = null, form = null, parameters = {}, signal = null } = {}) {
  const body = json === null ? form : JSON.stringify(json);
  const type = json === null ? {} : { "Content-Type": "application/json" };
  try {
    return await fetch(address(path, parameters), { method, body, headers: headers(type), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "Check that it is running and that you are connected to it.");
  }
}

async function request(path, options = {}) {
  const response = await send(path, options);
  if (response.ok) return response.status === 204 ? null : response.json();
  const error = await problem(response);
  if (askForKey && (error.status === 401 || (error.status === 403 && key()))) {
    asking ??= askForKey(key() ? error.message : null).finally(() => (asking = null));
    const entered = await asking;
    if (entered) {
      keepKey(entered);
      return request(path, options);
    }
  }
  throw error;
}

async function problem(response) {
  const retryAfter = Number(response.headers.get("Retry-After")) || null;
  let body = {};
  try {
    body = (await response.json()).error ?? {};
  } catch {
    // Not JSON: perhaps the response of a proxy.
  }
  const message = body.message ?? `The service returned status ${response.status}.`;
  return new ApiError(response.status, message, { code: body.code, field: body.field ?? null, retryAfter });
}

// Routes

/** query: see `readQuery`; image: a file or null. */
export function search(query, image, signal) {
  const body = {
    text: query.q || null,
    like: query.like || null,
    instruction: query.instruction || null,
    target: query.target || null,
    k: query.k,
    mode: query.mode,
    beam: query.beam,
    budget: query.budget || null,
    where: query.where || null,
    branch: query.branch || null,
    explain: true,
  };
  if (!image) return request("v1/search", { method: "POST", json: body, signal });
  const form = new FormData();
  for (const [name, value] of Object.entries(body)) if (value !== null) form.set(name, String(value));
  form.set("image", image, "image");
  return request("v1/search", { method: "POST", form, signal });
}

const itemPath = (id) => `v1/items/${encodeURIComponent(id)}`;

export const indexes = () => request("v1/indexes");
export const item = (id, signal = null) => request(itemPath(id), { signal });
export const deleteItem = (id) => request(itemPath(id), { method: "DELETE" });
export const codes = (pattern, parameters, signal = null) =>
  request(pattern ? `v1/codes/${pattern}` : "v1/codes", { parameters, signal });
export const addItems = (items) => request("v1/items", { method: "POST", json: { items } });
export const job = (id) => request(`v1/jobs/${encodeURIComponent(id)}`);
export const cancelJob = (id) => request(`v1/jobs/${encodeURIComponent(id)}`, { method: "DELETE" });

// Images

const blobs = new Map(); // address -> promise of a blob URL, oldest first

const visible = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      visible.unobserve(target);
      load(target, target.dataset.address);
    }
  },
  { rootMargin: "300px" },
);

/** Loads an <img> or SVG <image>. With an API key the image is fetched, because elements cannot send headers. */
export function fillImage(element, path, size) {
  const url = address(path, { size }).href;
  if (!key()) return setSource(element, url);
  element.dataset.address = url;
  if (element instanceof HTMLImageElement && element.loading === "lazy") visible.observe(element);
  else load(element, url);
  return element;
}

function setSource(element, url) {
  if (element instanceof HTMLImageElement) element.src = url;
  else element.setAttribute("href", url);
  return element;
}

async function load(element, url) {
  if (!blobs.has(url)) {
    blobs.set(url, fetchImage(url));
    if (blobs.size > KEPT_IMAGES) forgetOldest();
  }
  try {
    setSource(element, await blobs.get(url));
  } catch {
    blobs.delete(url);
    element.dispatchEvent(new Event("error"));
  }
}

async function fetchImage(url) {
  const response = await fetch(url, { headers: headers() });
  if (!response.ok) throw await problem(response);
  return URL.createObjectURL(await response.blob());
}

function forgetOldest() {
  const [url, blob] = blobs.entries().next().value;
  blobs.delete(url);
  blob.then(URL.revokeObjectURL, () => {});
}
