// dom.js: creates elements. Data becomes text or attribute values, never markup.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

/**
 * Creates an element. Properties are attributes, except: functions become event listeners (`onclick`), `data` is
 * an object of data attributes and `vars` an object of CSS variables.
 */
export function el(tag, properties = {}, ...children) {
  return configure(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return configure(document.createElementNS(SVG, tag), properties, children);
}

/** One of the icons in the <defs> of index.html. */
export function icon(name) {
  return svg("svg", { class: "icon", "aria-hidden": "true" }, svg("use", { href: `#icon-${name}` }));
}

function configure(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "vars")
      for (const [key, one] of Object.entries(value)) element.style.setProperty(`--${key}`, one);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Shows or hides HTML and SVG elements. */
export function show(visible, ...elements) {
  for (const element of elements) element.toggleAttribute("hidden", !visible);
}

let hideTimer = 0;

/** Shows a short message at the bottom of the page, with at most one action: {label, id, run}. */
export function toast(message, action = null) {
  const box = $("toast");
  box.replaceChildren(el("span", {}, message));
  if (action) {
    const run = () => {
      box.hidden = true;
      action.run();
    };
    box.append(el("button", { type: "button", class: "link", id: action.id, onclick: run }, action.label));
  }
  box.hidden = false;
  clearTimeout(hideTimer);
  hideTimer = setTimeout(() => (box.hidden = true), action ? 12000 : 6000);
}
