// Who spends, and on what: clients by operation, what the cache saves, what is slow.

import { byId, el, empty, name, table } from "./dom.js";
import { brief, count, percent, took } from "./format.js";
import { draws, model } from "./model.js";

/** The most clients and rows. */
const CLIENTS = 12;
const ROWS = 10;
const narrow = matchMedia("(max-width: 700px)");

const middling = matchMedia("(max-width: 1280px)");

/** How many operations have a column of their own. */
const columns = () => (middling.matches ? 3 : 6);

const total = (list, of) => list.reduce((n, s) => n + of(s), 0);

/** Groups rows by a name, those that cost most first. */
function by(list, key) {
  const groups = new Map();
  for (const s of list) groups.set(s[key], [...(groups.get(s[key]) ?? []), s]);
  return [...groups].map(([group, rows]) => ({ name: group, rows, spent: total(rows, (s) => s.spent), upstream: total(rows, (s) => s.upstream), saved: total(rows, (s) => s.saved), requests: total(rows, (s) => s.requests) }))
    .sort((a, b) => b.spent - a.spent || b.upstream - a.upstream || b.requests - a.requests || (a.name < b.name ? -1 : 1));
}

/** A number with a colour of its weight. */
function heat(n, most) {
  const node = el("span", { class: n ? "heat" : "heat zero" }, n ? brief(n) : "–");
  node.style.setProperty("--heat", `${n ? 6 + 34 * Math.sqrt(n / most) : 0}%`);
  return node;
}

/** Clients by operations: what each spent of its quota. */
function spend() {
  const { spenders } = model.costs;
  const place = byId("spend");
  if (!spenders.length) {
    place.replaceChildren(empty("Nobody has asked anything in the last hour."));
    return;
  }
  const clients = by(spenders, "client");
  const grid = narrow.matches ? spendList(clients) : spendMatrix(clients, spenders);
  const more = clients.length > CLIENTS ? el("p", { class: "more note" }, `and ${count(clients.length - CLIENTS)} more clients`) : null;
  place.replaceChildren(...[grid, more].filter(Boolean));
}

function spendMatrix(clients, spenders) {
  const operations = by(spenders, "operation").slice(0, columns()).map((o) => o.name);
  const most = Math.max(1, ...spenders.map((s) => s.spent));
  const rows = clients.slice(0, CLIENTS).map((c) => {
    const shown = operations.map((o) => total(c.rows.filter((s) => s.operation === o), (s) => s.spent));
    const rest = c.spent - shown.reduce((a, b) => a + b, 0);
    return [name(c.name, "strong"), ...shown.map((n) => heat(n, most)), rest ? brief(rest) : "–", el("b", {}, brief(c.spent)), brief(c.upstream), el("span", { class: "good-text" }, brief(c.saved))];
  });
  const heads = [{ name: "Client", class: "first" }, ...operations.map((o) => ({ name: o, num: true, class: "op" })), { name: "Others", num: true }, { name: "Spent", num: true }, { name: "Sent", num: true }, { name: "Saved", num: true }];
  const grid = table(heads, rows, { class: "grid matrix" });
  for (const th of grid.querySelectorAll("th.op")) th.title = th.textContent;
  return grid;
}

/** The same where there is no room: each client, and what it spends most on. */
function spendList(clients) {
  const rows = clients.slice(0, CLIENTS).map((c) => {
    const top = c.rows.toSorted((a, b) => b.spent - a.spent)[0];
    return [el("span", {}, name(c.name, "strong"), name(`most on ${top.operation}`, "note")), el("b", {}, brief(c.spent)), el("span", { class: "good-text" }, brief(c.saved))];
  });
  return table([{ name: "Client", class: "first" }, { name: "Spent", num: true }, { name: "Saved", num: true }], rows, { class: "grid matrix" });
}

/** What part of an operation's requests the cache answered. */
function ratio() {
  const place = byId("ratio");
  const list = model.costs.operations.filter((o) => o.requests);
  if (!list.length) {
    place.replaceChildren(empty("No operation was asked for in the last hour."));
    return;
  }
  const rows = list.slice(0, ROWS).map((o) => {
    const part = (n, outcome) => {
      const bar = el("span", { class: "ratio-part", "data-outcome": outcome });
      bar.style.width = `${(100 * n) / o.requests}%`;
      return bar;
    };
    const bar = el("span", { class: "ratio", role: "img", "aria-label": `${percent(o.held, o.requests)} from the cache, ${percent(o.validated, o.requests)} validated` }, part(o.held, "hit"), part(o.validated, "validated"));
    bar.title = bar.getAttribute("aria-label");
    return [name(o.operation), bar, percent(o.held, o.requests), brief(o.requests), brief(o.upstream)];
  });
  place.replaceChildren(table([{ name: "Operation" }, { name: "From the cache", class: "ratio-col" }, { name: "Hits", num: true }, { name: "Asked", num: true }, { name: "Sent", num: true, class: "late" }], rows));
}

/** Those that take longest. */
function slow() {
  const place = byId("slow");
  const list = model.costs.operations.filter((o) => o.requests).sort((a, b) => b.p95_ns - a.p95_ns);
  if (!list.length) {
    place.replaceChildren(empty("No operation was asked for in the last hour."));
    return;
  }
  const most = list[0].p95_ns || 1;
  const rows = list.slice(0, ROWS).map((o) => {
    const bar = el("span", { class: "slow-bar", "aria-hidden": "true" });
    bar.style.width = `${Math.max(1, (100 * o.p95_ns) / most)}%`;
    return [name(o.operation), el("span", { class: "slow-track" }, bar), took(o.median_ns), took(o.p95_ns), took(o.max_ns)];
  });
  place.replaceChildren(table([{ name: "Operation" }, { name: "", class: "ratio-col" }, { name: "Median", num: true }, { name: "95 %", num: true }, { name: "Max", num: true, class: "late" }], rows));
}

const draw = () => {
  spend();
  ratio();
  slow();
};
for (const width of [narrow, middling]) width.addEventListener("change", draw);
draws(["costs"], draw);
