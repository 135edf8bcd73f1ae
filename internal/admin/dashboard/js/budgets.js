// The budgets of every account: what is left, until when, and whether it lasts. Of many
// only a page is drawn, so a thousand accounts cost no more than ten.

import { byId, el, keep, name, say, svg } from "./dom.js";
import { amount, clock, count, plural, span } from "./format.js";
import { changed, draws, model, now, until } from "./model.js";
import { ask } from "./live.js";
import { left, secondary, tone, urgency } from "./risk.js";

const PAGE = 12;
/** How often the lines of the last hour are asked for, in ms. */
const LINES_EVERY = 10000;

const form = /** @type {HTMLFormElement} */ (byId("budgets-filters"));
let page = 0;
/** @type {Record<string, Record<string, (number|null)[]>>} */
let lines = {};

/** All budgets, each with its account and forecast. */
function all() {
  const rows = [];
  for (const account of model.accounts.values()) {
    for (const budget of account.budgets ?? []) {
      rows.push({ key: `${account.account}\n${budget.resource}`, account, budget, forecast: account.forecasts?.[budget.resource] });
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

/** Those that the filters leave, in order. */
function chosen(rows) {
  const text = form.text.value.trim().toLowerCase();
  const which = form.which.value;
  const time = now();
  const byName = (a, b) => (a.key < b.key ? -1 : 1);
  const order = ORDERS[form.order.value](time);
  return rows
    .filter((r) => !text || r.account.account.toLowerCase().includes(text) || r.budget.resource.includes(text))
    .filter((r) => which === "all" || (which === "risk" ? tone(r.budget, r.forecast) !== "good" : (which === "secondary") === secondary(r.budget)))
    .sort((a, b) => order(a, b) || byName(a, b));
}

/** A row that knows how to show another state of its budget. */
function row(item) {
  const who = name("", "strong");
  const kind = el("span", { class: "chip" });
  const cooling = el("span", { class: "chip bad", hidden: true });
  const resource = name("");
  const fill = el("span", { class: "gauge-fill" });
  const held = el("span", { class: "gauge-held" });
  const gauge = el("span", { class: "gauge", role: "meter", "aria-valuemin": 0 }, fill, held);
  const number = el("span", { class: "gauge-text" });
  const reset = el("span");
  const rate = el("span", { class: "forecast" });
  const spark = svg("svg", { class: "spark", viewBox: "0 0 160 30", preserveAspectRatio: "none", role: "img" });
  const node = el("tr", {},
    el("th", { scope: "row", "data-label": "Account" }, el("span", { class: "who" }, who, kind, cooling)),
    el("td", { "data-label": "Budget" }, resource),
    el("td", { "data-label": "Left", class: "wide-col" }, el("span", { class: "gauge-cell" }, gauge, number)),
    el("td", { "data-label": "Resets", class: "num" }, reset),
    el("td", { "data-label": "At this rate" }, rate),
    el("td", { "data-label": "Last hour", class: "spark-col" }, spark));
  let drawn = "";
  node.update = ({ account, budget, forecast }) => {
    say(who, account.account);
    who.title = `${account.account} (${account.kind})`;
    say(kind, account.kind);
    const blocked = account.blocked_until ? until(account.blocked_until) : 0;
    cooling.hidden = blocked <= 0;
    if (blocked > 0) say(cooling, `cool-down ${span(blocked)}`);
    say(resource, budget.resource);
    resource.title = budget.resource;
    node.dataset.tone = tone(budget, forecast);
    fill.style.width = `${100 * left(budget)}%`;
    held.style.width = `${budget.limit ? Math.min(100 * left(budget), (100 * (budget.held ?? 0)) / budget.limit) : 0}%`;
    held.style.left = `${Math.max(0, 100 * left(budget) - parseFloat(held.style.width))}%`;
    gauge.setAttribute("aria-valuemax", budget.limit);
    gauge.setAttribute("aria-valuenow", Math.max(0, budget.remaining));
    gauge.setAttribute("aria-label", `${budget.resource} of ${account.account}`);
    say(number, `${amount(budget.resource, budget.remaining)} / ${amount(budget.resource, budget.limit)}`);
    number.title = budget.held ? `${amount(budget.resource, budget.held)} held by requests in flight` : "";
    const resets = until(budget.reset);
    say(reset, budget.used && resets > 0 ? span(resets) : "–");
    reset.title = budget.used ? `at ${clock(budget.reset)}` : "nothing is used";
    sayForecast(rate, budget, forecast);
    const line = lines[account.account]?.[budget.resource];
    const mark = `${line?.length}/${line?.at(-1)}/${budget.remaining}/${Math.round(resets / 10)}/${forecast?.ends ?? ""}`;
    if (mark !== drawn) {
      drawn = mark;
      sparkline(spark, budget, forecast, line);
    }
  };
  return node;
}

/** Whether the budget lasts, in words. */
function sayForecast(node, budget, forecast) {
  const ends = forecast ? until(forecast.ends) : 0;
  node.dataset.tone = forecast?.early ? "warn" : "";
  if (budget.remaining <= 0) {
    say(node, "spent");
  } else if (!forecast || ends <= 0) {
    say(node, budget.used || budget.held ? "steady" : "untouched");
  } else if (forecast.early) {
    say(node, `▲ ends in ${span(ends)}`);
  } else {
    say(node, ends > 86400 ? "lasts" : `lasts ${span(ends)}`);
  }
  node.title = forecast ? `${forecast.rate.toFixed(2)} a second; ends at ${clock(forecast.ends)}` : "";
}

/** Seconds that the sparkline shows behind and ahead of now. */
const BEHIND = 3600;
const AHEAD = 1200;

/** The last hour, and where the present rate leads before the reset. */
function sparkline(node, budget, forecast, line = []) {
  const x = (seconds) => (160 * (seconds + BEHIND)) / (BEHIND + AHEAD);
  const y = (value) => 28 - 26 * (budget.limit > 0 ? Math.min(1, Math.max(0, value) / budget.limit) : 0);
  const points = [];
  line.forEach((value, i) => {
    if (value !== null) points.push(`${x(-(line.length - 1 - i) * 30).toFixed(1)},${y(value).toFixed(1)}`);
  });
  points.push(`${x(0).toFixed(1)},${y(budget.remaining).toFixed(1)}`);
  const parts = [svg("line", { class: "spark-now", x1: x(0), x2: x(0), y1: 1, y2: 29 })];
  const resets = until(budget.reset);
  if (budget.used && resets > 0 && resets < AHEAD) parts.push(svg("line", { class: "spark-reset", x1: x(resets), x2: x(resets), y1: 1, y2: 29 }));
  parts.push(svg("polyline", { class: "spark-line", points: points.join(" ") }));
  if (forecast) {
    const ends = Math.min(until(forecast.ends), Math.max(resets, 0), AHEAD);
    parts.push(svg("line", { class: "spark-ahead", x1: x(0), y1: y(budget.remaining), x2: x(ends), y2: y(budget.remaining - forecast.rate * ends) }));
  }
  node.setAttribute("aria-label", `${budget.resource}: ${amount(budget.resource, budget.remaining)} left${forecast?.early ? ", ends before its reset at this rate" : ""}`);
  node.replaceChildren(...parts);
}

/** Asks for the lines of the accounts on this page. */
async function refreshLines(rows) {
  const accounts = [...new Set(rows.map((r) => r.account.account))];
  if (!accounts.length) return;
  const query = accounts.map((a) => `account=${encodeURIComponent(a)}`).join("&");
  try {
    lines = await ask(`/api/v1/series?${query}`);
    changed("lines");
  } catch {
    // The connection says of itself that it is lost.
  }
}

let asked = { at: 0, what: "" };

function draw() {
  const rows = all();
  const found = chosen(rows);
  const pages = Math.max(1, Math.ceil(found.length / PAGE));
  page = Math.min(page, pages - 1);
  const shown = found.slice(page * PAGE, page * PAGE + PAGE);
  keep(byId("budget-rows"), shown, (r) => r.key, row);
  const what = shown.map((r) => r.key).join();
  if (what !== asked.what || performance.now() - asked.at > LINES_EVERY) {
    asked = { at: performance.now(), what };
    refreshLines(shown);
  }
  say(byId("budgets-count"), rows.length === 0 ? "" : `${plural(rows.length, "budget")} of ${plural(model.accounts.size, "account")}${found.length < rows.length ? `, ${count(found.length)} shown` : ""}`);
  const none = byId("budgets-empty");
  none.hidden = shown.length > 0;
  document.querySelector(".budgets").hidden = shown.length === 0;
  say(none, why(rows));
  drawPager(pages);
}

/** Why there is nothing to see. */
function why(rows) {
  if (!model.heard) return "Waiting for the gateway to tell what each account has left.";
  if (model.trouble) return `The accounts are not known at present: ${model.trouble}`;
  if (!rows.length) return "No account has sent anything yet: a budget appears with the first request that counts against it.";
  return "No budget is like that: change the filter.";
}

function drawPager(pages) {
  const pager = byId("budgets-pager");
  pager.hidden = pages < 2;
  if (pages < 2) return;
  if (!pager.firstChild) {
    const turn = (by) => () => {
      page += by;
      draw();
    };
    pager.append(
      el("button", { class: "button", type: "button", onclick: turn(-1) }, "Previous"),
      el("span", { class: "note" }),
      el("button", { class: "button", type: "button", onclick: turn(1) }, "Next"));
  }
  const [previous, words, next] = pager.children;
  previous.disabled = page === 0;
  next.disabled = page >= pages - 1;
  say(words, `page ${count(page + 1)} of ${count(pages)}`);
}

form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", () => {
  page = 0;
  draw();
});
draws(["accounts", "state", "lines", "second"], draw);
