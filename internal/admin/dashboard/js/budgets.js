// The table of budgets: the remaining amount, the reset and the forecast of each budget. Only one page of rows is drawn, so
// the cost of drawing does not grow with the number of accounts.

import { byId, el, label, reconcile, setText, svg } from "./dom.js";
import { amount, clock, count, formatSeconds, plural } from "./format.js";
import { changed, model, now, registerPanel, until, ownValue } from "./model.js";
import { request } from "./live.js";
import { remainingShare, secondary, tone, urgency } from "./risk.js";

const PAGE_SIZE = 12;
/** The interval at which the lines of the last hour are loaded, in ms. */
const LINES_INTERVAL = 10000;

const form = /** @type {HTMLFormElement} */ (byId("budgets-filters"));
let page = 0;
/** The values of the last hour by account and resource. @type {Record<string, Record<string, (number|null)[]>>} */
let lines = {};

/** Returns all budgets, each with its account and forecast. */
function allRows() {
  const rows = [];
  for (const account of model.accounts.values()) {
    for (const budget of account.budgets ?? []) {
      rows.push({ key: `${account.account}\n${budget.resource}`, account, budget, forecast: ownValue(account.forecasts, budget.resource) });
    }
  }
  return rows;
}

const ORDERS = {
  critical: (time) => (a, b) => urgency(b, time) - urgency(a, time),
  account: () => () => 0,
  reset: () => (a, b) => Date.parse(a.budget.reset) - Date.parse(b.budget.reset),
  used: () => (a, b) => b.budget.used - a.budget.used,
};

/** Returns the rows that pass the filters, sorted. */
function filterRows(rows) {
  const text = form.text.value.trim().toLowerCase();
  const type = form.type.value;
  const byKey = (a, b) => (a.key < b.key ? -1 : 1);
  const order = ORDERS[form.order.value](now());
  return rows
    .filter((r) => !text || r.account.account.toLowerCase().includes(text) || r.budget.resource.includes(text))
    .filter((r) => type === "all" || (type === "risk" ? tone(r.budget, r.forecast) !== "good" : (type === "secondary") === secondary(r.budget)))
    .sort((a, b) => order(a, b) || byKey(a, b));
}

/** Creates a table row. Its update function shows another state of the budget. */
function createRow() {
  const accountName = label("", "strong");
  const kind = el("span", { class: "chip" });
  const coolDown = el("span", { class: "chip bad", hidden: true });
  const resource = label("");
  const fill = el("span", { class: "gauge-fill" });
  const held = el("span", { class: "gauge-held" });
  const gauge = el("span", { class: "gauge", role: "meter", "aria-valuemin": 0 }, fill, held);
  const number = el("span", { class: "gauge-text" });
  const reset = el("span");
  const forecastText = el("span", { class: "forecast" });
  const spark = svg("svg", { class: "spark", viewBox: "0 0 160 30", preserveAspectRatio: "none", role: "img" });
  const node = el("tr", {},
    el("th", { scope: "row", "data-label": "Account" }, el("span", { class: "account" }, accountName, kind, coolDown)),
    el("td", { "data-label": "Budget" }, resource),
    el("td", { "data-label": "Remaining", class: "wide-col" }, el("span", { class: "gauge-cell" }, gauge, number)),
    el("td", { "data-label": "Reset in", class: "num" }, reset),
    el("td", { "data-label": "Forecast" }, forecastText),
    el("td", { "data-label": "Last hour", class: "spark-col" }, spark));
  let drawnState = "";
  node.update = ({ account, budget, forecast }) => {
    setText(accountName, account.account);
    accountName.title = `${account.account} (${account.kind})`;
    setText(kind, account.kind);
    const blocked = account.blocked_until ? until(account.blocked_until) : 0;
    coolDown.hidden = !account.closed_since && blocked <= 0;
    if (account.closed_since) setText(coolDown, "closed");
    else if (blocked > 0) setText(coolDown, `cool-down ${formatSeconds(blocked)}`);
    setText(resource, budget.resource);
    resource.title = budget.resource;
    node.dataset.tone = tone(budget, forecast);
    const remaining = 100 * remainingShare(budget);
    const heldWidth = budget.limit ? Math.min(remaining, (100 * (budget.held ?? 0)) / budget.limit) : 0;
    fill.style.width = `${remaining}%`;
    held.style.width = `${heldWidth}%`;
    held.style.left = `${Math.max(0, remaining - heldWidth)}%`;
    gauge.setAttribute("aria-valuemax", budget.limit);
    gauge.setAttribute("aria-valuenow", Math.max(0, budget.remaining));
    gauge.setAttribute("aria-label", `${budget.resource} of ${account.account}`);
    setText(number, `${amount(budget.resource, budget.remaining)} / ${amount(budget.resource, budget.limit)}`);
    const notes = [];
    if (budget.held) notes.push(`${amount(budget.resource, budget.held)} reserved by requests in flight`);
    if (budget.share) notes.push(`${Math.round(100 * budget.share)} % of the limit, because another program seems to use the rest`);
    number.title = notes.join("; ");
    const resets = until(budget.reset);
    setText(reset, budget.used && resets > 0 ? formatSeconds(resets) : "–");
    reset.title = budget.used ? `at ${clock(budget.reset)}` : "not used";
    showForecast(forecastText, budget, forecast);
    const line = ownValue(ownValue(lines, account.account), budget.resource);
    const state = `${line?.length}/${line?.at(-1)}/${budget.remaining}/${Math.round(resets / 10)}/${forecast?.ends ?? ""}`;
    if (state !== drawnState) {
      drawnState = state;
      drawSparkline(spark, budget, forecast, line);
    }
  };
  return node;
}

/** Shows the time at which the budget runs out at the present rate. */
function showForecast(node, budget, forecast) {
  const ends = forecast ? until(forecast.ends) : 0;
  node.dataset.tone = forecast?.early ? "warn" : "";
  if (budget.remaining <= 0) {
    setText(node, "exhausted");
  } else if (!forecast || ends <= 0) {
    setText(node, budget.used || budget.held ? "steady" : "unused");
  } else if (forecast.early) {
    setText(node, `▲ ends in ${formatSeconds(ends)}`);
  } else {
    setText(node, ends > 86400 ? "lasts" : `lasts ${formatSeconds(ends)}`);
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

/** Loads the lines of the accounts on this page. */
async function loadLines(rows) {
  const accounts = [...new Set(rows.map((r) => r.account.account))];
  if (!accounts.length) return;
  const query = accounts.map((a) => `account=${encodeURIComponent(a)}`).join("&");
  try {
    lines = await request(`/api/v1/series?${query}`);
    changed("lines");
  } catch {
    // live.js shows the lost connection.
  }
}

/** The time of the last load of lines, and the rows of that load. */
let loaded = { time: 0, keys: "" };

function draw() {
  const rows = allRows();
  const filtered = filterRows(rows);
  const pages = Math.max(1, Math.ceil(filtered.length / PAGE_SIZE));
  page = Math.min(page, pages - 1);
  const visible = filtered.slice(page * PAGE_SIZE, page * PAGE_SIZE + PAGE_SIZE);
  reconcile(byId("budget-rows"), visible, (r) => r.key, createRow);
  const keys = visible.map((r) => r.key).join();
  if (keys !== loaded.keys || performance.now() - loaded.time > LINES_INTERVAL) {
    loaded = { time: performance.now(), keys };
    loadLines(visible);
  }
  setText(byId("budgets-count"), rows.length === 0 ? "" : `${plural(rows.length, "budget")} of ${plural(model.accounts.size, "account")}${filtered.length < rows.length ? `, ${count(filtered.length)} shown` : ""}`);
  const empty = byId("budgets-empty");
  empty.hidden = visible.length > 0;
  document.querySelector(".budgets").hidden = visible.length === 0;
  setText(empty, emptyText(rows));
  drawPager(pages);
}

/** Returns the reason for an empty table. */
function emptyText(rows) {
  if (!model.ready) return "Waiting for the gateway.";
  if (model.error) return `The accounts cannot be listed: ${model.error}`;
  if (model.state?.limits === "off") return "Limits are off (upstream.limits): requests are sent immediately.";
  if (!rows.length) return "No account has sent a request yet. A budget appears with the first request that counts against it.";
  return "No budget matches the filter.";
}

function drawPager(pages) {
  const pager = byId("budgets-pager");
  pager.hidden = pages < 2;
  if (pages < 2) return;
  if (!pager.firstChild) {
    const move = (by) => () => {
      page += by;
      draw();
    };
    pager.append(
      el("button", { class: "button", type: "button", onclick: move(-1) }, "Previous"),
      el("span", { class: "note" }),
      el("button", { class: "button", type: "button", onclick: move(1) }, "Next"));
  }
  const [previous, position, next] = pager.children;
  previous.disabled = page === 0;
  next.disabled = page >= pages - 1;
  setText(position, `page ${count(page + 1)} of ${count(pages)}`);
}

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", () => {
  page = 0;
  draw();
});
registerPanel(["accounts", "state", "lines", "second"], draw);
