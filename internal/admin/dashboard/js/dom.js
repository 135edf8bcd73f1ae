// Elements from data. Text is only ever set as text: nothing that a client or the API
// wrote becomes an element.

const SVG = "http://www.w3.org/2000/svg";

/** @param {string} id */
export const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/**
 * An element with attributes and children. An attribute that is undefined, null or false
 * is left out; "class" and "dataset" are what they are in HTML.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Node|string|number|null|undefined)} children
 */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  set(node, attributes);
  node.append(...children.filter((c) => c !== null && c !== undefined).map((c) => (c instanceof Node ? c : String(c))));
  return node;
}

/** An element of SVG. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  set(node, attributes);
  node.append(...children);
  return node;
}

function set(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(node.dataset, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
}

/** Sets text where it has changed, so that nothing is repainted, or read out, for nothing. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Shows words in the place of what there is none of. */
export const empty = (words) => el("p", { class: "empty" }, words);

/**
 * Brings the children of a parent in line with items, and keeps those that stay: focus and
 * selection stay with them.
 * @template T
 * @param {Element} parent
 * @param {T[]} items
 * @param {(item: T) => string} keyOf
 * @param {(item: T) => Element & {update?: (item: T) => void}} make
 */
export function keep(parent, items, keyOf, make) {
  const old = parent.kept ?? new Map();
  const next = new Map();
  let at = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let node = old.get(key);
    if (!node || node.parentNode !== parent) node = make(item);
    node.update?.(item);
    next.set(key, node);
    if (node === at) at = at.nextElementSibling;
    else parent.insertBefore(node, at);
  }
  for (const [key, node] of old) if (next.get(key) !== node) node.remove();
  parent.kept = next;
}

/**
 * A table.
 * @param {{name: string, num?: boolean, class?: string}[]} columns
 * @param {(Node|string)[][]} rows
 */
export function table(columns, rows, attributes = {}) {
  const kind = (c) => [c.num ? "num" : "", c.class ?? ""].join(" ").trim() || undefined;
  return el("table", { class: "grid", ...attributes },
    el("thead", {}, el("tr", {}, ...columns.map((c) => el("th", { scope: "col", class: kind(c) }, c.name)))),
    el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell, i) => el("td", { class: kind(columns[i]) }, cell))))));
}

/** A name that may be long: cut where there is no room, and whole when pointed at. */
export const name = (text, className = "") => el("span", { class: `cut ${className}`.trim(), title: text }, text);
