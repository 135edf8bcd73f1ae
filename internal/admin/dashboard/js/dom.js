// Functions that build elements from data. All text is set with textContent, so text of a client or of the upstream
// never becomes markup.

const SVG = "http://www.w3.org/2000/svg";

/** @param {string} id */
export const byId = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/**
 * Creates an element with attributes and children. Attributes that are undefined, null or false are omitted. A key that
 * begins with "on" adds an event listener.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Node|string|number|null|undefined)} children
 */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  setAttributes(node, attributes);
  node.append(...children.filter((c) => c !== null && c !== undefined).map((c) => (c instanceof Node ? c : String(c))));
  return node;
}

/** Creates an SVG element. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  setAttributes(node, attributes);
  node.append(...children);
  return node;
}

function setAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(node.dataset, value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
}

/** Sets the text of a node if the text differs, so that unchanged text is neither repainted nor announced again. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Creates the paragraph that a panel without data shows. */
export const placeholder = (text) => el("p", { class: "empty" }, text);

/**
 * Updates the children of a parent to match items. Nodes whose key is still present are reused, so focus and selection
 * survive.
 * @template T
 * @param {Element} parent
 * @param {T[]} items
 * @param {(item: T) => string} keyOf
 * @param {(item: T) => Element & {update?: (item: T) => void}} create
 */
export function reconcile(parent, items, keyOf, create) {
  const previous = parent.nodesByKey ?? new Map();
  const next = new Map();
  let cursor = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let node = previous.get(key);
    if (!node || node.parentNode !== parent) node = create(item);
    node.update?.(item);
    next.set(key, node);
    if (node === cursor) cursor = cursor.nextElementSibling;
    else parent.insertBefore(node, cursor);
  }
  for (const [key, node] of previous) if (next.get(key) !== node) node.remove();
  parent.nodesByKey = next;
}

/**
 * Creates a table.
 * @param {{name: string, num?: boolean, class?: string}[]} columns
 * @param {(Node|string)[][]} rows
 */
export function table(columns, rows, attributes = {}) {
  const classOf = (c) => [c.num ? "num" : "", c.class ?? ""].join(" ").trim() || undefined;
  return el("table", { class: "grid", ...attributes },
    el("thead", {}, el("tr", {}, ...columns.map((c) => el("th", { scope: "col", class: classOf(c) }, c.name)))),
    el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell, i) => el("td", { class: classOf(columns[i]) }, cell))))));
}

/** Creates a span for a text that may be too long. The style sheet truncates it, and the tooltip shows the whole text. */
export const label = (text, className = "") => el("span", { class: `cut ${className}`.trim(), title: text }, text);
