// The panels about costs: quota by client, operation and tag, cache hits and slow operations.

import { byId, el, label, placeholder, table } from "./dom.js";
import { brief, count, formatNanoseconds, percent } from "./format.js";
import { model, registerPanel } from "./model.js";

/** The maximum of clients, and of rows per table. */
const MAX_CLIENTS = 12;
const MAX_ROWS = 10;
const narrow = matchMedia("(max-width: 700px)");
const medium = matchMedia("(max-width: 1280px)");

/** Returns the number of operations that have a column. */
const operationColumns = () => (medium.matches ? 3 : 6);

const total = (list, of) => list.reduce((n, s) => n + of(s), 0);

/** Groups rows by a key and sums up each group. The groups that spent most come first. */
function groupBy(list, key) {
  const groups = new Map();
  for (const s of list) groups.set(s[key], [...(groups.get(s[key]) ?? []), s]);
  return [...groups].map(([group, rows]) => ({ name: group, rows, spent: total(rows, (s) => s.spent), upstream: total(rows, (s) => s.upstream), saved: total(rows, (s) => s.saved), requests: total(rows, (s) => s.requests) }))
    .sort((a, b) => b.spent - a.spent || b.upstream - a.upstream || b.requests - a.requests || (a.name < b.name ? -1 : 1));
}

/** Creates a number whose background is darker the closer the number is to the maximum. */
function heatCell(n, max) {
  const node = el("span", { class: n ? "heat" : "heat zero" }, n ? brief(n) : "–");
  node.style.setProperty("--heat", `${n ? 6 + 34 * Math.sqrt(n / max) : 0}%`);
  return node;
}

/** Draws the quota that each client spent. */
function drawSpend() {
  const { spenders } = model.costs;
  const parent = byId("spend");
  if (!spenders.length) {
    parent.replaceChildren(placeholder("No requests in the last hour."));
    return;
  }
  const clients = groupBy(spenders, "client");
  const grid = narrow.matches ? spendList(clients) : spendMatrix(clients, spenders);
  const more = clients.length > MAX_CLIENTS ? el("p", { class: "more note" }, `and ${count(clients.length - MAX_CLIENTS)} more clients`) : null;
  parent.replaceChildren(...[grid, more].filter(Boolean));
}

/** Creates a table with a row for each client and a column for each of the most expensive operations. */
function spendMatrix(clients, spenders) {
  const operations = groupBy(spenders, "operation").slice(0, operationColumns()).map((o) => o.name);
  const max = Math.max(1, ...spenders.map((s) => s.spent));
  const rows = clients.slice(0, MAX_CLIENTS).map((c) => {
    const byOperation = operations.map((o) => total(c.rows.filter((s) => s.operation === o), (s) => s.spent));
    const rest = c.spent - byOperation.reduce((a, b) => a + b, 0);
    return [label(c.name, "strong"), ...byOperation.map((n) => heatCell(n, max)), rest ? brief(rest) : "–", el("b", {}, brief(c.spent)), brief(c.upstream), el("span", { class: "good-text" }, brief(c.saved))];
  });
  const columns = [{ name: "Client", class: "first" }, ...operations.map((o) => ({ name: o, num: true, class: "op" })), { name: "Other", num: true }, { name: "Spent", num: true }, { name: "Forwarded", num: true }, { name: "Saved", num: true }];
  const grid = table(columns, rows, { class: "grid matrix" });
  for (const th of grid.querySelectorAll("th.op")) th.title = th.textContent;
  return grid;
}

/** Creates the table for narrow windows: each client with its most expensive operation. */
function spendList(clients) {
  const rows = clients.slice(0, MAX_CLIENTS).map((c) => {
    const top = c.rows.toSorted((a, b) => b.spent - a.spent)[0];
    return [el("span", {}, label(c.name, "strong"), label(`mostly ${top.operation}`, "note")), el("b", {}, brief(c.spent)), el("span", { class: "good-text" }, brief(c.saved))];
  });
  return table([{ name: "Client", class: "first" }, { name: "Spent", num: true }, { name: "Saved", num: true }], rows, { class: "grid matrix" });
}

/** Draws the quota that the requests with each tag spent. */
function drawTags() {
  const { tags } = model.costs;
  const rows = tags.slice(0, MAX_ROWS).map((s) => [label(s.tag, "strong"), label(s.client), el("b", {}, brief(s.spent)), brief(s.upstream), el("span", { class: "good-text" }, brief(s.saved))]);
  const columns = [{ name: "Tag" }, { name: "Client" }, { name: "Spent", num: true }, { name: "Forwarded", num: true, class: "late" }, { name: "Saved", num: true }];
  const more = tags.length > MAX_ROWS ? el("p", { class: "more note" }, `and ${count(tags.length - MAX_ROWS)} more tags`) : null;
  byId("tags").replaceChildren(...[rows.length ? table(columns, rows) : null, more].filter(Boolean));
}

/** Draws the share of cache hits of each operation. */
function drawHitRatio() {
  const parent = byId("ratio");
  const list = model.costs.operations.filter((o) => o.requests);
  if (!list.length) {
    parent.replaceChildren(placeholder("No requests in the last hour."));
    return;
  }
  const rows = list.slice(0, MAX_ROWS).map((o) => {
    const segment = (n, outcome) => {
      const node = el("span", { class: "ratio-part", "data-outcome": outcome });
      node.style.width = `${(100 * n) / o.requests}%`;
      return node;
    };
    const bar = el("span", { class: "ratio", role: "img", "aria-label": `${percent(o.hits, o.requests)} hits, ${percent(o.validated, o.requests)} validated` }, segment(o.hits, "hit"), segment(o.validated, "validated"));
    bar.title = bar.getAttribute("aria-label");
    return [label(o.operation), bar, percent(o.hits, o.requests), brief(o.requests), brief(o.upstream)];
  });
  parent.replaceChildren(table([{ name: "Operation" }, { name: "From the cache", class: "ratio-col" }, { name: "Hits", num: true }, { name: "Requests", num: true }, { name: "Forwarded", num: true, class: "late" }], rows));
}

function drawSlowest() {
  const parent = byId("slow");
  const list = model.costs.operations.filter((o) => o.requests).sort((a, b) => b.p95_ns - a.p95_ns);
  if (!list.length) {
    parent.replaceChildren(placeholder("No requests in the last hour."));
    return;
  }
  const max = list[0].p95_ns || 1;
  const rows = list.slice(0, MAX_ROWS).map((o) => {
    const bar = el("span", { class: "slow-bar", "aria-hidden": "true" });
    bar.style.width = `${Math.max(1, (100 * o.p95_ns) / max)}%`;
    return [label(o.operation), el("span", { class: "slow-track" }, bar), formatNanoseconds(o.median_ns), formatNanoseconds(o.p95_ns), formatNanoseconds(o.max_ns)];
  });
  parent.replaceChildren(table([{ name: "Operation" }, { name: "", class: "ratio-col" }, { name: "Median", num: true }, { name: "95 %", num: true }, { name: "Max", num: true, class: "late" }], rows));
}

const draw = () => {
  drawSpend();
  drawTags();
  drawHitRatio();
  drawSlowest();
};
for (const width of [narrow, medium]) width.addEventListener("change", draw);
registerPanel(["costs"], draw);
