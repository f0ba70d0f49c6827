// reference.js: the API reference. Reads /openapi.json and shows every operation with a form to try it.

const METHODS = ["get", "post", "put", "delete"];
const keyField = document.querySelector("#key");
const operations = document.querySelector("#operations");
let description;

function element(tag, values = {}, ...children) {
  const made = Object.assign(document.createElement(tag), values);
  made.append(...children.filter((child) => child !== null));
  return made;
}

// Text with `code` as <code> elements.
function words(text = "") {
  return text.split("`").map((part, at) => (at % 2 ? element("code", { textContent: part }) : part));
}

function headers() {
  return keyField.value ? { Authorization: `Bearer ${keyField.value}` } : {};
}

function resolved(schema = {}) {
  if (!schema.$ref) return schema;
  return description.components.schemas[schema.$ref.split("/").at(-1)] ?? {};
}

function typeName(schema = {}) {
  if (schema.anyOf) return schema.anyOf.map(typeName).filter((one) => one !== "null").join(" or ") + " or null";
  const found = resolved(schema);
  if (found.enum) return found.enum.map((one) => JSON.stringify(one)).join(", ");
  if (found.const !== undefined) return JSON.stringify(found.const);
  if (found.format === "binary") return "file";
  if (found.contentEncoding) return found.contentEncoding;
  if (found.type === "array") return `list of ${typeName(found.items)}`;
  return schema.$ref ? schema.$ref.split("/").at(-1) : (found.type ?? "any value");
}

function limits(schema = {}) {
  const inner = schema.anyOf ? (schema.anyOf.find((one) => one.type !== "null") ?? {}) : resolved(schema);
  const named = { minimum: "at least", maximum: "at most", minLength: "at least", maxLength: "at most", maxItems: "at most" };
  const units = { minLength: " characters", maxLength: " characters", maxItems: " entries" };
  const found = Object.keys(named).filter((name) => inner[name] !== undefined);
  return found.map((name) => `${named[name]} ${inner[name].toLocaleString("en")}${units[name] ?? ""}`).join(", ");
}

function defaultValue(schema = {}) {
  return schema.default === undefined || schema.default === null ? "" : JSON.stringify(schema.default);
}

function table(titles, rows) {
  const head = element("tr", {}, ...titles.map((title) => element("th", { scope: "col", textContent: title })));
  const lines = rows.map((cells) => element("tr", {}, ...cells.map((cell) => element("td", {}, ...[cell].flat()))));
  return element("div", { className: "scroll" }, element("table", {}, element("thead", {}, head), element("tbody", {}, ...lines)));
}

function about(schema) {
  const inner = resolved(schema);
  return [...words(schema.description ?? inner.description ?? ""), " ", element("span", { className: "soft", textContent: limits(schema) })];
}

// Tables of the fields of a schema and of its nested schemas
function fields(schema, seen = new Set()) {
  const inner = resolved(schema);
  if (inner.type === "array") return fields(inner.items ?? {}, seen);
  if (!inner.properties || seen.has(inner)) return [];
  seen.add(inner);
  const needed = new Set(inner.required ?? []);
  const rows = Object.entries(inner.properties).map(([name, one]) => {
    const title = [element("code", { textContent: name }), needed.has(name) ? "" : element("span", { className: "soft", textContent: " optional" })];
    return [title, typeName(one), defaultValue(one), about(one)];
  });
  const parts = [element("h4", { textContent: inner.title ?? "" }), table(["name", "type", "default", ""], rows)];
  for (const one of Object.values(inner.properties)) {
    for (const choice of one.anyOf ?? [one]) parts.push(...fields(choice.additionalProperties?.$ref ? choice.additionalProperties : choice, seen));
  }
  return parts;
}

function parameters(operation) {
  const inputs = new Map();
  const rows = (operation.parameters ?? []).filter((one) => one.in !== "header").map((one) => {
    const input = element("input", { ariaLabel: one.name, placeholder: defaultValue(one.schema), autocomplete: "off" });
    input.value = one.in === "path" ? String(one.schema.examples?.[0] ?? "") : "";
    inputs.set(one, input);
    return [element("code", { textContent: one.name }), typeName(one.schema), about({ ...one.schema, description: one.description }), input];
  });
  return { inputs, shown: rows.length ? [element("h3", { textContent: "Parameters" }), table(["name", "type", "", "value"], rows)] : [] };
}

// The request body: JSON in a text field, or a form. Returns its elements and a function that creates the body.
function body(operation) {
  const content = operation.requestBody?.content;
  if (!content) return { shown: [], body: () => ({}) };
  const examples = Object.values(content["application/json"].examples ?? {});
  const text = element("textarea", { spellcheck: false, ariaLabel: "Body as JSON" });
  const choice = element("select", { ariaLabel: "Example" }, ...examples.map((one, at) => element("option", { value: at, textContent: one.summary })));
  const fill = () => { text.value = JSON.stringify(examples[choice.value]?.value ?? {}, null, 2); };
  choice.addEventListener("change", fill);
  fill();
  const form = Object.entries(content["multipart/form-data"].schema.properties).map(([name, one]) => {
    const file = typeName(one).includes("file");
    return [name, element("input", { type: file ? "file" : "text", multiple: one.type === "array" && file, ariaLabel: name, placeholder: defaultValue(one) }), one];
  });
  const asForm = element("details", {}, element("summary", { textContent: "Send as a form (multipart/form-data)" }),
    table(["name", "type", "value"], form.map(([name, input, one]) => [element("code", { textContent: name }), typeName(one), input])));
  const schema = element("details", {}, element("summary", { textContent: "Fields" }), ...fields(content["application/json"].schema));
  return {
    shown: [element("h3", { textContent: "Body" }), element("p", {}, "Example: ", choice), text, schema, asForm],
    body: () => {
      if (!asForm.open) return { body: text.value, headers: { "Content-Type": "application/json" } };
      const data = new FormData();
      for (const [name, input] of form) {
        for (const file of input.files ?? []) data.append(name, file);
        if (input.type === "text" && input.value) data.append(name, input.value);
      }
      return { body: data };
    },
  };
}

function address(path, inputs) {
  const query = new URLSearchParams();
  for (const [one, input] of inputs) {
    if (one.in === "path") path = path.replace(`{${one.name}}`, encodeURIComponent(input.value));
    else if (input.value) query.set(one.name, input.value);
  }
  return query.size ? `${path}?${query}` : path;
}

async function show(answer, seconds, out) {
  const type = answer.headers.get("Content-Type") ?? "";
  const line = element("p", { className: answer.ok ? "" : "bad", textContent: `${answer.status} ${answer.statusText}, ${Math.round(seconds * 1000)} ms` });
  if (type.startsWith("image/")) {
    const image = element("img", { className: "answer", alt: "The image in the response" });
    image.src = URL.createObjectURL(await answer.blob());
    image.addEventListener("load", () => URL.revokeObjectURL(image.src));
    return out.replaceChildren(line, image);
  }
  const text = await answer.text();
  const pretty = type.startsWith("application/json") ? JSON.stringify(JSON.parse(text), null, 2) : text;
  out.replaceChildren(line, ...(pretty ? [element("pre", { textContent: pretty, tabIndex: 0 })] : []));
}

function operationView(path, method, operation) {
  const asked = parameters(operation);
  const sent = body(operation);
  const out = element("div", { ariaLive: "polite" });
  const send = element("button", { type: "button", textContent: "Send" });
  send.addEventListener("click", async () => {
    const began = performance.now();
    const request = sent.body();
    try {
      const answer = await fetch(address(path, asked.inputs), { method: method.toUpperCase(), ...request, headers: { ...request.headers, ...headers() } });
      await show(answer, (performance.now() - began) / 1000, out);
    } catch (error) {
      out.replaceChildren(element("p", { className: "bad", textContent: `The service cannot be reached (${error.message}).` }));
    }
  });
  const answers = Object.entries(operation.responses).map(([status, one]) => [element("code", { textContent: status }), one.description ?? ""]);
  const good = Object.values(operation.responses).find((one) => one.content?.["application/json"])?.content["application/json"];
  const answerFields = element("details", {}, element("summary", { textContent: "Responses" }), table(["status", "meaning"], answers), ...fields(good?.schema ?? {}));
  const summary = element("summary", {}, element("span", { className: "method", textContent: method.toUpperCase() }),
    element("span", { className: "path", textContent: path }), " ", element("span", { className: "soft", textContent: operation.summary ?? "" }));
  const inside = element("div", {}, element("p", {}, ...words(operation.description)), ...asked.shown, ...sent.shown, answerFields, element("p", {}, send), out);
  return element("details", { className: "operation", id: operation.operationId }, summary, inside);
}

async function load() {
  const answer = await fetch("/openapi.json", { headers: headers() });
  if (!answer.ok) throw new Error((await answer.json()).error?.message ?? answer.statusText);
  description = await answer.json();
  document.title = `API: ${description.info.title} ${description.info.version}`;
  document.querySelector("#about").replaceChildren(...words(description.info.description));
  const groups = description.tags.map((tag) => {
    const found = Object.entries(description.paths).flatMap(([path, methods]) => METHODS.filter((method) => methods[method]?.tags?.includes(tag.name))
      .map((method) => operationView(path, method, methods[method])));
    return element("section", {}, element("h2", { textContent: tag.name }), element("p", { className: "soft", textContent: tag.description }), ...found);
  });
  operations.replaceChildren(...groups);
  const wanted = location.hash && document.getElementById(location.hash.slice(1));
  if (wanted) { wanted.open = true; wanted.scrollIntoView(); }
}

async function start() {
  try {
    await load();
  } catch (error) {
    operations.replaceChildren(element("p", { className: "bad", textContent: `The API description cannot be loaded: ${error.message}` }));
  }
}

keyField.addEventListener("change", () => { if (!description) start(); });
start();
