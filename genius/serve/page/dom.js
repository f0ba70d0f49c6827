// dom.js: makes elements. Knows the DOM and nothing of search.
// Data only ever becomes text or attribute values, never markup.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

/** An element. Properties: `class`, `data` (an object), `onclick` and the like (functions); the rest are attributes. */
export function el(tag, properties = {}, ...children) {
  return furnish(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return furnish(document.createElementNS(SVG, tag), properties, children);
}

/** One of the drawings in the page's own <defs>. */
export function icon(name) {
  return svg("svg", { class: "icon", "aria-hidden": "true" }, svg("use", { href: `#icon-${name}` }));
}

function furnish(element, properties, children) {
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

/** Shows or hides elements, drawings too. */
export function show(visible, ...elements) {
  for (const element of elements) element.toggleAttribute("hidden", !visible);
}

let fading = 0;

/** A short notice at the foot of the page, with at most one thing to do about it. */
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
  clearTimeout(fading);
  fading = setTimeout(() => (box.hidden = true), action ? 12000 : 6000);
}
