// The answer to "Who spends?": the quota of the last hour by client, operation, tag or account.

import { byId, el, label, placeholder, reconcile, setText, table, WindowedRows } from "./dom.js";
import { drawChips, drawEmpty, filter } from "./filters.js";
import { brief, change, clock, count, formatNanoseconds, percent, plural } from "./format.js";
import { comparable, labelOf, model, OUTCOMES, registerPanel } from "./model.js";
import { createTile, drawAnswer, joinNames } from "./overview.js";
import { linkTo, visible } from "./route.js";

/** The maximum number of rows in the tables about operations. */
const MAX_ROWS = 10;

/** The list of costs for each group. Every list of costs also has the clients. */
const GROUPS = { client: "spenders", operation: "spenders", tag: "tags", account: "accounts", version: "versions" };
const GROUP_NAMES = Object.keys(GROUPS);

/** The name under which the gateway sums all names without a row. */
const OTHERS = "others";

const by = () => (GROUP_NAMES.includes(filter("by")) ? filter("by") : "client");

/** Returns the filters of the present address that the costs of a group support, except the filter by the group itself. */
function filtersOf(group) {
  const names = ["client", "operation", "tag", "account", "version"].filter((name) => name !== group && filter(name));
  return group === "client" ? names.slice(0, 1) : names.filter((name) => name === "client");
}

/** Returns the link that shows another group, without the filters that the group does not support. */
function linkToGroup(group) {
  const kept = filtersOf(group).map((name) => [name, filter(name)]);
  return linkTo("spending", { by: group === "client" ? "" : group, range: filter("range"), days: filter("days"), ...Object.fromEntries(kept) });
}

/** Returns the label of a name of a group. */
const labelIn = (group, row) => (group === "client" ? row.client_label : group === "account" ? row.account_label : row[group]);

const NO_USE = { requests: 0, spent: 0, upstream: 0, saved: 0 };

const addUse = (sum, use) => {
  for (const name in NO_USE) sum[name] += use?.[name] ?? 0;
};

/** Groups costs by a name and sums up each group. The groups that spent most come first. */
function groupBy(list, group) {
  const groups = new Map();
  for (const row of list) {
    const key = labelIn(group, row) || row[group]; // an account may change its name when the upstream names its login
    let g = groups.get(key);
    if (!g) groups.set(key, (g = { ...NO_USE, name: row[group], label: labelIn(group, row), before: { ...NO_USE }, top: row }));
    addUse(g, row);
    addUse(g.before, row.before);
    if (row.spent > g.top.spent) g.top = row;
  }
  return [...groups.values()].sort((a, b) => b.spent - a.spent || b.upstream - a.upstream || b.requests - a.requests || (a.name < b.name ? -1 : 1));
}

const total = (list, name) => list.reduce((n, row) => n + row[name], 0);

/** Clients whose spending differs by less than a tenth are equals in the answer. */
const NEARLY = 0.9;

let spentTotal = 0, spentMax = 1;

/** Creates the row of a group. */
function createRow() {
  const name = el("a", { class: "link cut strong" }), detail = label("", "note");
  const bar = el("span", { class: "spend-bar", "aria-hidden": "true" }), spent = el("b");
  const [share, before, upstream, saved] = Array.from({ length: 4 }, () => el("span"));
  const requests = el("a", { class: "link" });
  const node = el("tr", {},
    el("th", { scope: "row" }, el("span", { class: "two-lines" }, name, detail)),
    el("td", {}, el("span", { class: "spend-cell" }, el("span", { class: "spend-track" }, bar), spent)),
    el("td", { class: "num" }, share), el("td", { class: "num" }, before), el("td", { class: "num late" }, upstream),
    el("td", { class: "num good-text" }, saved), el("td", { class: "num late" }, requests));
  node.update = (g) => {
    const group = by();
    setText(name, g.label);
    name.title = g.name;
    if (g.name !== OTHERS) name.setAttribute("href", group === "client" ? linkTo("spending", { client: g.name, by: "operation" }) : linkTo("spending", { [group]: g.name }));
    const most = group === "client" ? g.top.operation : filter("client") ? "" : g.top.client_label;
    setText(detail, most && most !== OTHERS ? `mostly ${most}` : "");
    detail.title = detail.textContent;
    bar.style.width = `${Math.max(g.spent ? 1 : 0, (100 * g.spent) / spentMax)}%`;
    setText(spent, brief(g.spent));
    setText(share, percent(g.spent, spentTotal));
    setText(before, comparable() ? change(g.spent, g.before.spent) || "new" : "–");
    before.title = comparable() ? `${count(g.before.spent)} in the hour before` : waitText();
    setText(upstream, brief(g.upstream));
    setText(saved, brief(g.saved));
    setText(requests, brief(g.requests));
    if (g.name !== OTHERS) requests.setAttribute("href", linkTo("requests", { ...Object.fromEntries(filtersOf(group).map((f) => [f, filter(f)])), [group]: g.name }));
    requests.title = "show the recent requests";
  };
  return node;
}

/** Returns the time from which the last hour can be compared. */
const waitText = () => (model.state ? `compared from ${clock(Date.parse(model.state.started) + 2 * 3600 * 1000)}` : "");

/** Describes the change of a number against the hour before. */
const against = (n, before) => (comparable() ? (before ? `${change(n, before)} against the hour before` : "none in the hour before") : "in the last hour");

function tiles() {
  if (!model.series) return [];
  const { values, before } = model.series;
  const sum = (name) => values[name].reduce((a, b) => a + b, 0);
  const all = OUTCOMES.reduce((n, o) => n + sum(o), 0), allBefore = OUTCOMES.reduce((n, o) => n + (before[o] ?? 0), 0);
  const title = comparable() ? "" : waitText();
  return [
    { key: "spent", name: "Quota spent", value: brief(total(model.costs.spenders, "spent")), detail: against(sum("spent"), before.spent), title },
    { key: "requests", name: "Requests", value: brief(all), detail: against(all, allBefore), title },
    { key: "sent", name: "Forwarded", value: brief(sum("upstream")), detail: against(sum("upstream"), before.upstream), title },
    { key: "saved", name: "Saved by Weir", value: percent(sum("saved"), all), detail: `${brief(sum("saved"))} responses${comparable() ? "; " : " "}${against(sum("saved"), before.saved)}`, title },
  ];
}

const list = new WindowedRows(byId("spend"), (g) => g.name, createRow);

function drawAnswers(groups) {
  if (!model.ready) return;
  const [first] = groupBy(model.costs.spenders, "client");
  const spent = total(model.costs.spenders, "spent");
  if (!first) return drawAnswer("spending-answer", "No requests in the last hour.");
  if (!spent) return drawAnswer("spending-answer", "No request has spent quota in the last hour.", "good");
  const chosen = filter("client");
  if (chosen) {
    const own = total(groups, "spent");
    return drawAnswer("spending-answer", `${groups[0]?.top.client_label ?? labelOf(chosen)} spent ${count(own)} of ${count(spent)} (${percent(own, spent)}) in the last hour.`);
  }
  const equal = groupBy(model.costs.spenders, "client").filter((g) => g.name !== OTHERS && g.spent >= first.spent * NEARLY);
  if (equal.length > 1) {
    const names = equal.length > 3 ? plural(equal.length, "client") : joinNames(equal.map((g) => g.label));
    return drawAnswer("spending-answer", `${names} spend about the same: each up to ${percent(first.spent, spent)} of ${count(spent)} in the last hour.`);
  }
  drawAnswer("spending-answer", `${first.label} spends most: ${count(first.spent)} of ${count(spent)} (${percent(first.spent, spent)}) in the last hour.`);
}

registerPanel(["costs", "state", "configuration", "route"], () => {
  const group = by(), filters = filtersOf(group), text = filter("q").trim().toLowerCase();
  const costs = model.costs[filters.includes("tag") ? "tags" : filters.includes("account") ? "accounts" : GROUPS[group]];
  const groups = groupBy(costs.filter((row) => filters.every((f) => row[f] === filter(f))), group);
  spentTotal = total(groups, "spent");
  spentMax = Math.max(1, groups[0]?.spent ?? 0);
  drawAnswers(groups);
  const shown = groups.filter((g) => !text || g.name.toLowerCase().includes(text) || g.label.toLowerCase().includes(text));
  list.draw(shown);
  setText(byId("spend-name"), group === "version" ? "API version" : group[0].toUpperCase() + group.slice(1));
  setText(byId("spend-note"), `in the last hour, on this replica${shown.length < groups.length ? `; ${count(shown.length)} of ${count(groups.length)} shown` : ""}`);
  const none = group === "tag" && model.costs.spenders.length ? "No request had a tag in the last hour. A client sets a tag with the request header Weir-Tag." : "No requests in the last hour. Send one to see who spends:";
  drawEmpty("spend-empty", shown.length ? "" : groups.length ? "No name matches the search." : none, !groups.length && !model.costs.spenders.length);
  drawChips("spending-chips", filters);
  reconcile(byId("spend-by"), GROUP_NAMES, (name) => name, createSegment);
}, () => visible("spending"));

registerPanel(["series", "costs", "state"], () => reconcile(byId("spending-tiles"), tiles(), (t) => t.key, createTile), () => visible("spending"));

/** Creates the link that groups the list by another name. */
function createSegment(name) {
  const link = el("a", { class: "segment" }, name);
  link.update = () => {
    link.setAttribute("href", linkToGroup(name));
    if (name === by()) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  };
  return link;
}

const swatch = (outcome) => el("i", { class: "swatch", "data-outcome": outcome, "aria-hidden": "true" });

/** Draws the share of cache hits of each operation. */
registerPanel(["costs"], () => {
  const parent = byId("ratio");
  const operations = model.costs.operations.filter((o) => o.requests);
  if (!operations.length) {
    parent.replaceChildren(placeholder("No requests in the last hour."));
    return;
  }
  const rows = operations.slice(0, MAX_ROWS).map((o) => {
    const segment = (n, outcome) => {
      const node = el("span", { class: "ratio-part", "data-outcome": outcome });
      node.style.width = `${(100 * n) / o.requests}%`;
      return node;
    };
    const bar = el("span", { class: "ratio", role: "img", "aria-label": `${percent(o.hits, o.requests)} hits, ${percent(o.validated, o.requests)} validated` }, segment(o.hits, "hit"), segment(o.validated, "validated"));
    bar.title = bar.getAttribute("aria-label");
    return [operationLink(o.operation), bar, percent(o.hits, o.requests), brief(o.requests), brief(o.upstream)];
  });
  parent.replaceChildren(table([{ name: "Operation" }, { name: el("span", {}, swatch("hit"), "hit ", swatch("validated"), "validated"), class: "ratio-col" }, { name: "Hits", num: true }, { name: "Requests", num: true }, { name: "Forwarded", num: true, class: "late" }], rows));
}, () => visible("spending"));

/** Returns a link to the recent requests of an operation. */
const operationLink = (operation) => el("a", { class: "link cut", href: linkTo("requests", { operation }), title: operation }, operation);

registerPanel(["costs"], () => {
  const parent = byId("slow");
  const operations = model.costs.operations.filter((o) => o.requests).sort((a, b) => b.p95_ns - a.p95_ns);
  if (!operations.length) {
    parent.replaceChildren(placeholder("No requests in the last hour."));
    return;
  }
  const max = operations[0].p95_ns || 1;
  const rows = operations.slice(0, MAX_ROWS).map((o) => {
    const bar = el("span", { class: "slow-bar", "aria-hidden": "true" });
    bar.style.width = `${Math.max(1, (100 * o.p95_ns) / max)}%`;
    return [operationLink(o.operation), el("span", { class: "slow-track" }, bar), formatNanoseconds(o.median_ns), formatNanoseconds(o.p95_ns), formatNanoseconds(o.max_ns)];
  });
  parent.replaceChildren(table([{ name: "Operation" }, { name: "Relative", class: "ratio-col" }, { name: "Median", num: true }, { name: "95 %", num: true }, { name: "Max", num: true, class: "late" }], rows));
}, () => visible("requests"));
