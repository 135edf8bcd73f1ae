// The table of budgets: the remaining amount, the reset and the forecast of each budget.

import { byId, el, label, setText, svg, WindowedRows } from "./dom.js";
import { drawChips, drawEmpty, filter } from "./filters.js";
import { amount, clock, count, formatSeconds, percent, plural } from "./format.js";
import { changed, model, ownValue, registerPanel, until } from "./model.js";
import { request } from "./live.js";
import { remainingShare, rows, secondary, textOf, tone } from "./risk.js";
import { linkTo, visible } from "./route.js";

/** The interval at which the lines of the last hour are loaded, in ms. */
const LINES_INTERVAL = 10000;
/** The maximum number of accounts whose lines are loaded. */
const MAX_LINES = 100;

/** The lines: values of the last hour by account and resource. @type {Record<string, Record<string, (number|null)[]>>} */
let lines = {};

const ORDERS = {
  account: (a, b) => (textOf(a) < textOf(b) ? -1 : 1),
  reset: (a, b) => a.reset - b.reset,
  used: (a, b) => b.budget.used - a.budget.used,
};

/** Returns the rows that pass the filters, sorted. */
function filterRows() {
  const text = filter("q").trim().toLowerCase(), type = filter("type"), account = filter("account");
  const list = rows.filter((r) => (!text || textOf(r).includes(text)) && (!account || r.account.account === account) &&
    (!type || (type === "risk" ? tone(r) !== "good" : (type === "secondary") === secondary(r.budget))));
  const order = ownValue(ORDERS, filter("order"));
  return order ? list.sort(order) : list;
}

/** The number of budgets from which the healthy budgets of an account share a row. */
const MIN_FOLDED = 12;
/** The accounts whose healthy budgets are shown. @type {Set<string>} */
const unfolded = new Set();

/** Groups rows by account in the order of the highest risk, and folds the healthy budgets of each account into a row. */
function fold(list) {
  if (list.length < MIN_FOLDED || ["q", "type", "account", "order"].some(filter)) return list;
  const groups = new Map();
  for (const row of list) groups.set(row.account, [...(groups.get(row.account) ?? []), row]);
  return [...groups].flatMap(([account, own]) => {
    const healthy = own.filter((r) => tone(r) === "good");
    if (healthy.length < 2) return own;
    const head = { key: `${account.account}\n\n`, account, healthy, open: unfolded.has(account.account) };
    return [...own.filter((r) => !healthy.includes(r)), head, ...(head.open ? healthy : [])];
  });
}

/** Shows the cool-down of an account. */
function showCoolDown(chip, account) {
  const blocked = account.blocked_until ? until(account.blocked_until) : 0;
  chip.hidden = !account.closed_since && blocked <= 0;
  if (account.closed_since) setText(chip, "closed");
  else if (blocked > 0) setText(chip, `cool-down ${formatSeconds(blocked)}`);
}

/** Creates the row of the healthy budgets of an account. */
function createFold({ account: { account: id, kind } }) {
  const name = el("a", { class: "link cut strong", href: linkTo("spending", { account: id }), title: id });
  const coolDown = el("span", { class: "chip bad", hidden: true }), button = el("button", { type: "button", class: "fold" }), fill = el("span", { class: "gauge-fill" }), lowest = el("span", { class: "gauge-text" });
  button.addEventListener("click", () => {
    if (!unfolded.delete(id)) unfolded.add(id);
    drawList();
  });
  const node = el("tr", { "data-tone": "good", class: "folded" },
    el("th", { scope: "row" }, el("span", { class: "account" }, name, " ", el("span", { class: "chip" }, kind), " ", coolDown)),
    el("td", {}, button), el("td", {}, el("span", { class: "gauge-cell" }, el("span", { class: "gauge", "aria-hidden": "true" }, fill), lowest)),
    el("td", { class: "num" }), el("td", { class: "forecast" }, "last until their resets"), el("td", { class: "spark-col" }));
  node.update = ({ account, healthy, open }) => {
    showCoolDown(coolDown, account);
    setText(name, account.label);
    setText(button, `${open ? "▾" : "▸"} ${plural(healthy.length, "healthy budget")}`);
    button.setAttribute("aria-expanded", String(open));
    const share = Math.min(...healthy.map(({ budget }) => remainingShare(budget)));
    fill.style.width = `${100 * share}%`;
    setText(lowest, `${percent(share, 1)} or more`);
  };
  return node;
}

/** Creates a table row. Its update function shows another state of the budget. */
function createRow({ account: { account: id, kind: kindText } }) {
  const name = el("a", { class: "link cut strong", href: linkTo("spending", { account: id }), title: `${id} (${kindText}): show which clients spend it` });
  const kind = el("span", { class: "chip" });
  const coolDown = el("span", { class: "chip bad", hidden: true });
  const resource = label("");
  const fill = el("span", { class: "gauge-fill" });
  const held = el("span", { class: "gauge-held" });
  const gauge = el("span", { class: "gauge", role: "meter", "aria-valuemin": 0 }, fill, held);
  const number = el("span", { class: "gauge-text" });
  const reset = el("span"), resetCell = el("td", { class: "num" }, reset);
  const forecastText = el("span", { class: "forecast" });
  const spark = svg("svg", { class: "spark", viewBox: "0 0 160 30", preserveAspectRatio: "none", role: "img" });
  const node = el("tr", {},
    el("th", { scope: "row" }, el("span", { class: "account" }, name, " ", kind, " ", coolDown)),
    el("td", {}, resource),
    el("td", {}, el("span", { class: "gauge-cell" }, gauge, number)),
    resetCell,
    el("td", {}, forecastText),
    el("td", { class: "spark-col" }, spark));
  let drawnRow = null, drawnState = "";
  node.update = (row) => {
    const { account, budget, forecast } = row;
    showCoolDown(coolDown, account);
    const resets = until(budget.reset);
    setText(reset, budget.used && resets > 0 ? formatSeconds(resets) : "–");
    resetCell.classList.toggle("none", reset.textContent === "–");
    showForecast(forecastText, budget, forecast);
    if (budget.resource === "graphql" && account.graphql_drain) setText(forecastText, drainText(account));
    const line = ownValue(ownValue(lines, account.account), budget.resource);
    const state = `${line?.length}/${line?.at(-1)}/${budget.remaining}/${Math.round(resets / 10)}/${forecast?.ends ?? ""}`;
    if (state !== drawnState) {
      drawnState = state;
      drawSparkline(spark, budget, forecast, line);
    }
    if (row === drawnRow) return; // only the times have changed
    drawnRow = row;
    setText(name, account.label);
    setText(kind, account.kind);
    setText(resource, budget.resource);
    resource.title = budget.resource === "graphql" ? drainText(account) || budget.resource : budget.resource;
    node.dataset.tone = tone(row);
    const remaining = 100 * remainingShare(budget);
    const heldWidth = budget.limit ? Math.min(remaining, (100 * (budget.held ?? 0)) / budget.limit) : 0;
    fill.style.width = `${remaining}%`;
    held.style.width = `${heldWidth}%`;
    held.style.left = `${Math.max(0, remaining - heldWidth)}%`;
    gauge.setAttribute("aria-valuemax", budget.limit);
    gauge.setAttribute("aria-valuenow", Math.max(0, budget.remaining));
    gauge.setAttribute("aria-label", `${budget.resource} of ${account.label}`);
    setText(number, `${amount(budget.resource, budget.remaining)} / ${amount(budget.resource, budget.limit)}`);
    const notes = [];
    if (budget.held) notes.push(`${amount(budget.resource, budget.held)} reserved by requests in flight`);
    if (budget.allowance) notes.push(`${Math.round(100 * budget.allowance)} % of the limit, because another program seems to use the rest`);
    number.title = notes.join("; ");
    reset.title = budget.used ? `at ${clock(budget.reset)}` : "not used";
  };
  return node;
}

/** Returns which queries drain GraphQL while REST is almost unused, or an empty text. */
function drainText(account) {
  const drain = account.graphql_drain;
  if (!drain) return "";
  const queries = drain.queries.map((q) => `${q.query} (${count(q.spent)} points)`).join(", ");
  return `GraphQL is almost empty while REST is almost unused${queries ? `: store (cache.graphql) or move to REST ${queries}` : ""}`;
}

/** Shows the time at which the budget runs out at the present rate. */
function showForecast(node, budget, forecast) {
  const ends = forecast ? until(forecast.ends) : 0;
  node.dataset.tone = budget.remaining <= 0 ? "bad" : forecast?.early ? "warn" : "";
  if (budget.remaining <= 0) {
    setText(node, "exhausted");
  } else if (forecast?.early) {
    setText(node, ends > 0 ? `▲ ends in ${formatSeconds(ends)}` : "▲ ends now");
  } else if (!forecast || ends <= 0) {
    setText(node, budget.used || budget.held ? "steady" : "unused");
  } else {
    setText(node, until(budget.reset) > 0 ? "lasts until the reset" : "lasts");
  }
  node.title = forecast ? `${forecast.rate.toFixed(2)} per second; ends at ${clock(forecast.ends)}` : "";
}

/** The seconds that a sparkline shows before and after the present. */
const PAST = 3600;
const FUTURE = 1200;

/** Draws the last hour of a budget, and its forecast until the reset. */
function drawSparkline(node, budget, forecast, line = []) {
  const x = (seconds) => (160 * (seconds + PAST)) / (PAST + FUTURE);
  const y = (value) => 28 - 26 * (budget.limit > 0 ? Math.min(1, Math.max(0, value) / budget.limit) : 0);
  const points = [];
  line.forEach((value, i) => {
    if (value !== null) points.push(`${x(-(line.length - 1 - i) * 30).toFixed(1)},${y(value).toFixed(1)}`);
  });
  points.push(`${x(0).toFixed(1)},${y(budget.remaining).toFixed(1)}`);
  const parts = [svg("line", { class: "spark-now", x1: x(0), x2: x(0), y1: 1, y2: 29 })];
  const resets = until(budget.reset);
  if (budget.used && resets > 0 && resets < FUTURE) parts.push(svg("line", { class: "spark-reset", x1: x(resets), x2: x(resets), y1: 1, y2: 29 }));
  parts.push(svg("polyline", { class: "spark-line", points: points.join(" ") }));
  if (forecast) {
    const ends = Math.min(until(forecast.ends), Math.max(resets, 0), FUTURE);
    parts.push(svg("line", { class: "spark-forecast", x1: x(0), y1: y(budget.remaining), x2: x(ends), y2: y(budget.remaining - forecast.rate * ends) }));
  }
  node.setAttribute("aria-label", `${budget.resource}: ${amount(budget.resource, budget.remaining)} left${forecast?.early ? ", runs out before its reset at the present rate" : ""}`);
  node.replaceChildren(...parts);
}

/** The time of the last load of lines. */
let loadTime = -LINES_INTERVAL;

/** Loads the lines of the drawn accounts. The interval is ten seconds, or one second while an account has no lines. */
async function loadLines() {
  const accounts = [...new Set(list.drawn.map((r) => r.account.account))].slice(0, MAX_LINES);
  const interval = accounts.every((a) => ownValue(lines, a)) ? LINES_INTERVAL : 1000;
  if (!accounts.length || performance.now() - loadTime < interval) return;
  loadTime = performance.now();
  try {
    lines = await request(`/api/v1/series?${accounts.map((a) => `account=${encodeURIComponent(a)}`).join("&")}`);
    changed("lines");
  } catch {
    // live.js shows the lost connection.
  }
}

const list = new WindowedRows(byId("budget-rows"), (r) => r.key, (r) => (r.healthy ? createFold(r) : createRow(r)), () => loadLines());

const shown = () => visible("budgets");

registerPanel(["accounts", "configuration", "route"], drawList, shown);
registerPanel(["state"], () => list.items.length || drawList(), shown);

function drawList() {
  const filtered = filterRows();
  list.draw(fold(filtered));
  loadLines();
  setText(byId("budgets-count"), rows.length === 0 ? "" : `${plural(rows.length, "budget")} of ${plural(model.accounts.size, "account")}${filtered.length < rows.length ? `, ${count(filtered.length)} shown` : ""}`);
  drawChips("budgets-chips", ["account"]);
  const text = filtered.length ? "" : emptyText();
  drawEmpty("budgets-empty", text, text === NO_ACCOUNT);
}

registerPanel(["second", "lines"], () => {
  list.draw();
  loadLines();
}, shown);

const NO_ACCOUNT = "No account has sent a request yet. A budget appears with the first request that counts against it:";

/** Returns the reason for an empty table. */
function emptyText() {
  if (!model.ready) return "Waiting for the gateway.";
  if (model.error) return `The accounts cannot be listed: ${model.error}`;
  if (model.state?.limits === "off") return "Limits are off (upstream.limits): requests are sent immediately.";
  return rows.length ? "No budget matches the filters." : NO_ACCOUNT;
}
