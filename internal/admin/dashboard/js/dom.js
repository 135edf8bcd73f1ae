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
  node.append(...children.filter((c) => c !== null && c !== undefined).flatMap((c) => (c instanceof Node ? c : breakable(String(c)))));
  return node;
}

/** Splits a text after the separators of paths and names, so that a line ends there instead of within a word. */
const breakable = (text) => text.split(/(?<=[/:_])(?=[\p{L}{]|\d{4})|(?<=\.)(?=\p{L}{5})/u).flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));

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
  if (node.textContent !== text) node.replaceChildren(...breakable(text));
}

/**
 * Creates a list of names and values. A row may have a tone.
 * @param {[string, Node|string, string?][]} rows
 */
export const facts = (rows, kind = "") =>
  el("dl", { class: `facts ${kind}`.trim() }, ...rows.flatMap(([name, value, tone]) => [el("dt", {}, name), el("dd", { "data-tone": tone || undefined }, value)]));

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

/** The number of rows that are drawn above and below the visible rows. */
const MARGIN = 6;

/**
 * A table that draws only the rows near the visible part of its scrolling region. The cost of drawing does not grow with
 * the number of rows. All rows get the height of the highest row that has been drawn in this width.
 * @template T
 */
export class WindowedRows {
  /**
   * @param {HTMLElement} body the tbody of the rows, within an element of class "window"
   * @param {(item: T) => string} keyOf
   * @param {(item: T) => Element & {update?: (item: T) => void}} create
   * @param {() => void} [scrolled] called after scrolling has drawn other rows
   */
  constructor(body, keyOf, create, scrolled = () => {}) {
    Object.assign(this, { body, keyOf, create, items: [], first: 0, last: 0, top: 0, width: 0, height: 600, rowHeight: 0 });
    this.scroller = body.closest(".window");
    this.table = body.closest("table");
    this.above = el("tr", { "aria-hidden": "true", class: "space" });
    this.below = el("tr", { "aria-hidden": "true", class: "space" });
    body.before(el("tbody", {}, this.above));
    body.after(el("tbody", {}, this.below));
    this.scroller.addEventListener("scroll", () => {
      const { first, last } = this;
      this.top = this.scroller.scrollTop;
      this.draw();
      if (first !== this.first || last !== this.last) scrolled();
    }, { passive: true });
    const observer = new ResizeObserver(() => requestAnimationFrame(() => this.measure()));
    observer.observe(this.scroller);
    observer.observe(body);
  }

  /** Measures the region and the rows, and draws the rows. Other draws need no layout of the page. */
  measure() {
    const { body, scroller, rowHeight } = this, width = scroller.clientWidth;
    if (!width) return; // the screen is hidden
    if (width !== this.width) body.style.removeProperty("--row-height");
    this.rowHeight = Math.max(width === this.width ? rowHeight : 0, ...[...body.children].map((row) => row.offsetHeight));
    this.width = width;
    if (this.rowHeight) body.style.setProperty("--row-height", `${this.rowHeight}px`);
    if (this.rowHeight && rowHeight && this.rowHeight !== rowHeight) scroller.scrollTop *= this.rowHeight / rowHeight; // the same rows stay visible
    this.top = scroller.scrollTop;
    this.height = scroller.clientHeight;
    this.draw();
  }

  /** The items whose rows exist. */
  get drawn() {
    return this.items.slice(this.first, this.last);
  }

  /** @param {T[]} items */
  draw(items = this.items) {
    this.items = items;
    const { top, height, rowHeight } = this, row = rowHeight || 44;
    this.first = Math.max(0, Math.min(Math.floor(top / row), items.length) - MARGIN);
    this.last = Math.min(items.length, Math.ceil((top + height) / row) + MARGIN);
    reconcile(this.body, this.drawn, this.keyOf, this.create);
    [...this.body.children].forEach((row, i) => row.setAttribute("aria-rowindex", String(this.first + i + 2)));
    this.above.style.height = `${this.first * row}px`;
    this.below.style.height = `${(items.length - this.last) * row}px`;
    this.table.hidden = items.length === 0;
    this.table.setAttribute("aria-rowcount", String(items.length + 1));
    if (!rowHeight && this.body.firstElementChild?.offsetHeight) this.measure();
  }
}

/**
 * Creates a table.
 * @param {{name: Node|string, num?: boolean, class?: string}[]} columns
 * @param {(Node|string)[][]} rows
 */
export function table(columns, rows, attributes = {}) {
  const classOf = (c) => [c.num ? "num" : "", c.class ?? ""].join(" ").trim() || undefined;
  return el("table", { class: "grid", ...attributes },
    el("thead", {}, el("tr", {}, ...columns.map((c) => el("th", { scope: "col", class: classOf(c) }, c.name)))),
    el("tbody", {}, ...rows.map((cells) => el("tr", {}, ...cells.map((cell, i) => el("td", { class: classOf(columns[i]) }, cell))))));
}

/** Creates a span for a text that may be too long. The style sheet truncates it in rows of equal height, and the tooltip shows the whole text. */
export const label = (text, className = "") => el("span", { class: `cut ${className}`.trim(), title: text }, text);
