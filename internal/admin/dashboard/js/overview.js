// The tiles with the most important numbers, and the alerts.

import { byId, el, reconcile, setText } from "./dom.js";
import { amount, brief, count, formatSeconds, percent, plural } from "./format.js";
import { OUTCOMES, model, now, registerPanel, until, ownValue } from "./model.js";
import { remainingShare, urgency } from "./risk.js";

/** Creates a tile with a name, a value and a detail. */
function createTile(item) {
  const value = el("span", { class: "tile-value" });
  const detail = el("span", { class: "tile-more" });
  const node = el("div", { class: "tile", "data-tile": item.key }, el("span", { class: "tile-name" }, item.name), value, detail);
  node.update = (i) => {
    setText(value, i.value);
    setText(detail, i.detail);
    node.dataset.tone = i.tone ?? "";
  };
  return node;
}

/** Returns sums over the last steps of the series. */
function sums(steps) {
  const sum = (name) => model.series.values[name].slice(-steps).reduce((a, b) => a + b, 0);
  return { total: OUTCOMES.reduce((n, o) => n + sum(o), 0), saved: sum("saved"), sent: sum("upstream"), refused: sum("refused"), error: sum("error") };
}

function tiles() {
  const list = [];
  if (model.series) {
    const minute = sums(6), hour = sums(360);
    list.push(
      { key: "requests", name: "Requests per minute", value: brief(minute.total), detail: `${brief(hour.total)} in the last hour` },
      { key: "saved", name: "Saved by the cache", value: percent(hour.saved, hour.total), detail: `${brief(hour.saved)} in the last hour` },
      { key: "sent", name: "Forwarded per minute", value: brief(minute.sent), detail: `${brief(hour.sent)} in the last hour` },
      { key: "refused", name: "Refused and errors", value: `${brief(hour.refused)} · ${brief(hour.error)}`, detail: "in the last hour", tone: hour.error ? "warn" : "" },
    );
  }
  if (!model.ready) return list;
  let inFlight = 0;
  for (const a of model.accounts.values()) inFlight += a.in_flight;
  const waiting = Object.values(model.state.waiting ?? {}).reduce((a, b) => a + b, 0);
  const critical = mostCritical();
  const share = critical ? remainingShare(critical.budget) : 1;
  list.push(
    { key: "in-flight", name: "In flight · waiting", value: `${count(inFlight)} · ${count(waiting)}`, detail: `of ${plural(model.accounts.size, "account")}`, tone: waiting > 50 ? "warn" : "" },
    critical
      ? { key: "critical", name: "Most critical budget", value: percent(critical.budget.remaining, critical.budget.limit), detail: `${critical.budget.resource} of ${critical.account.account}`, tone: share < 0.1 ? "bad" : share < 0.25 ? "warn" : "" }
      : { key: "critical", name: "Most critical budget", value: "–", detail: "no budget is used yet" },
  );
  return list;
}

function mostCritical() {
  let critical = null;
  let highest = 0;
  for (const account of model.accounts.values()) {
    for (const budget of account.budgets ?? []) {
      const forecast = ownValue(account.forecasts, budget.resource);
      const score = budget.used ? urgency({ account: {}, budget, forecast }, now()) : 0; // cool-downs have an alert
      if (score > highest) [critical, highest] = [{ account, budget }, score];
    }
  }
  return critical;
}

/** The minimum time between exhaustion and reset, in ms, for which a budget raises an alert. */
const MIN_BLOCKED = 30000;
/** The maximum of alerts about budgets that run out early. */
const MAX_EARLY = 3;

/** Returns the alerts, the most severe first. */
function alerts() {
  const list = [];
  if (!model.ready) return list;
  const { store, refused } = model.state;
  if (store.lost) list.push({ tone: "bad", text: `The store has not responded for ${formatSeconds(-until(store.lost))}. This replica continues within the quota that it has leased.` });
  else if (model.error) list.push({ tone: "bad", text: `The accounts cannot be listed: ${model.error}` });
  const closed = [...model.accounts.values()].filter((a) => a.closed_since);
  if (closed.length) list.push({ tone: "bad", text: `${plural(closed.length, "account")} closed after failed probes: ${joinNames(closed.map((a) => a.account))}. Open with weir account open NAME.` });
  const blocked = [...model.accounts.values()].filter((a) => !a.closed_since && a.blocked_until && Date.parse(a.blocked_until) > now());
  if (blocked.length) list.push({ tone: "bad", text: `${plural(blocked.length, "account")} in a cool-down: ${joinNames(blocked.map((a) => a.account))}.` });
  if (refused?.length) list.push({ tone: "warn", text: `The upstream rejects ${plural(refused.length, "credential")}: ${joinNames(refused.map((c) => c.credential))}.` });
  const early = [];
  for (const account of model.accounts.values()) {
    for (const budget of account.budgets ?? []) {
      const forecast = ownValue(account.forecasts, budget.resource);
      const blockedTime = forecast?.early && until(forecast.ends) > 0 ? Date.parse(budget.reset) - Date.parse(forecast.ends) : 0;
      if (blockedTime > MIN_BLOCKED) early.push({ account, budget, forecast, blockedTime });
    }
  }
  early.sort((x, y) => y.blockedTime - x.blockedTime);
  for (const { account, budget, forecast, blockedTime } of early.slice(0, MAX_EARLY)) {
    list.push({ tone: "warn", text: `At the present rate, ${budget.resource} of ${account.account} runs out in ${formatSeconds(until(forecast.ends))}, ${formatSeconds(blockedTime / 1000)} before its reset; ${amount(budget.resource, budget.remaining)} left.` });
  }
  if (early.length > MAX_EARLY) list.push({ tone: "warn", text: `${plural(early.length - MAX_EARLY, "more budget runs", "more budgets run")} out before the reset. The budgets below are sorted by urgency.` });
  if (!list.length) list.push({ tone: "good", text: "No alerts: no cool-down, no budget that runs out early, no rejected credential, and the store responds." });
  return list;
}

const joinNames = (list) => (list.length > 3 ? `${list.slice(0, 3).join(", ")} and ${count(list.length - 3)} more` : list.join(", "));

function createAlert() {
  const text = el("span");
  const node = el("p", { class: "alert" }, el("span", { class: "alert-mark", "aria-hidden": "true" }), text);
  node.update = (a) => {
    node.dataset.tone = a.tone;
    setText(text, a.text);
  };
  return node;
}

registerPanel(["series", "accounts", "state"], () => reconcile(byId("tiles"), tiles(), (t) => t.key, createTile));
registerPanel(["accounts", "state"], () => {
  const list = alerts().map((a, i) => ({ ...a, key: String(i) }));
  reconcile(byId("alerts"), list, (a) => a.key, createAlert);
});
