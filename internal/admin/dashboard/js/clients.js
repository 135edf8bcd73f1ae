// The parts that clients have of the primary windows of their account: one table for each account with several clients.

import { byId, el, label, setText } from "./dom.js";
import { filter } from "./filters.js";
import { count, plural } from "./format.js";
import { model, ownValue, registerPanel } from "./model.js";
import { visible } from "./route.js";

/** The maximum number of rows in all tables. */
const MAX_ROWS = 100;

/** The columns after the name of the client. @type {[string, (row: any) => number|undefined][]} */
const COLUMNS = [
  ["Part", (r) => r.nominal],
  ["Guarantee", (r) => r.guarantee ?? 0],
  ["Limit", (r) => r.limit],
  ["Used", (r) => r.used],
  ["Borrowed", (r) => r.nominal && (r.borrowed ?? 0)],
  ["Lent", (r) => r.nominal && (r.lent ?? 0)],
  ["Waiting", (r) => r.nominal && (r.waiting ?? 0)],
  ["Denied", (r) => r.nominal && (r.denied ?? 0)],
];

/** Returns the client budgets of an account by resource, most used first, each with its resource and requests. */
function rowsOf(account) {
  return (account.budgets ?? [])
    .filter((b) => b.client && (!filter("client") || b.client === filter("client")))
    .map((b) => ({ ...b, ...ownValue(account.clients, b.resource), window: b.resource.split(":")[1] }))
    .sort((a, b) => (a.window === b.window ? b.used - a.used || (a.client < b.client ? -1 : 1) : a.window < b.window ? -1 : 1));
}

function drawRow(row) {
  return el("tr", {},
    el("th", { scope: "row" }, el("span", { class: "account" }, label(row.client, "strong"), " ", el("span", { class: "chip" }, row.window))),
    ...COLUMNS.map(([name, value]) => {
      const n = value(row);
      return el("td", { class: n && name === "Denied" ? "num bad-text" : "num", "data-label": name }, n === undefined ? "–" : count(n));
    }));
}

function drawTable(name, rows) {
  return el("table", { class: "grid clients", "aria-label": `Clients of ${name}` },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, label(name)), ...COLUMNS.map(([column]) => el("th", { scope: "col", class: "num" }, column)))),
    el("tbody", {}, ...rows.map(drawRow)));
}

let drawn = "";

registerPanel(["accounts", "route"], () => {
  const tables = [];
  let all = 0;
  for (const account of model.accounts.values()) {
    if (filter("account") && filter("account") !== account.account) continue;
    const rows = rowsOf(account);
    const shown = rows.slice(0, Math.max(0, MAX_ROWS - all));
    if (shown.length) tables.push([account.label, shown]);
    all += rows.length;
  }
  const text = JSON.stringify(tables);
  if (text === drawn) return;
  drawn = text;
  byId("clients").hidden = all === 0;
  setText(byId("clients-note"), `of primary windows; on this replica, requests waiting now and denied in the last hour${all > MAX_ROWS ? `; ${MAX_ROWS} of ${plural(all, "row")}` : ""}`);
  byId("client-tables").replaceChildren(...tables.map(([name, rows]) => drawTable(name, rows)));
}, () => visible("spending"));
