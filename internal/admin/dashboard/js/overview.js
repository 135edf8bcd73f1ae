// The numbers that matter most, and what needs somebody.

import { byId, el, keep, say } from "./dom.js";
import { amount, brief, count, percent, plural, span } from "./format.js";
import { OUTCOMES, draws, model, now, until } from "./model.js";
import { left, urgency } from "./risk.js";

/** A tile: a number, its name, and a word more. */
function tile(item) {
  const value = el("span", { class: "tile-value" });
  const more = el("span", { class: "tile-more" });
  const node = el("div", { class: "tile", "data-tile": item.key }, el("span", { class: "tile-name" }, item.name), value, more);
  node.update = (i) => {
    say(value, i.value);
    say(more, i.more);
    node.dataset.tone = i.tone ?? "";
  };
  return node;
}

/** Sums of the last steps of the series. */
function sums(steps) {
  const sum = (name) => model.series.values[name].slice(-steps).reduce((a, b) => a + b, 0);
  return { all: OUTCOMES.reduce((n, o) => n + sum(o), 0), saved: sum("saved"), sent: sum("upstream"), refused: sum("refused"), error: sum("error") };
}

function tiles() {
  const list = [];
  if (model.series) {
    const minute = sums(6), hour = sums(360);
    list.push(
      { key: "requests", name: "Requests a minute", value: brief(minute.all), more: `${brief(hour.all)} in the hour` },
      { key: "saved", name: "Cost nothing", value: percent(hour.saved, hour.all), more: `${brief(hour.saved)} saved in the hour` },
      { key: "sent", name: "Sent a minute", value: brief(minute.sent), more: `${brief(hour.sent)} in the hour` },
      { key: "refused", name: "Refused and errors", value: `${brief(hour.refused)} · ${brief(hour.error)}`, more: "in the hour", tone: hour.error ? "warn" : "" },
    );
  }
  if (!model.heard) return list;
  let inFlight = 0;
  for (const a of model.accounts.values()) inFlight += a.in_flight;
  const waiting = Object.values(model.state.waiting ?? {}).reduce((a, b) => a + b, 0);
  const tight = tightest();
  list.push(
    { key: "flight", name: "In flight · waiting", value: `${count(inFlight)} · ${count(waiting)}`, more: `of ${plural(model.accounts.size, "account")}`, tone: waiting > 50 ? "warn" : "" },
    tight
      ? { key: "tight", name: "Tightest budget", value: percent(tight.budget.remaining, tight.budget.limit), more: `${tight.budget.resource} of ${tight.account.account}`, tone: left(tight.budget) < 0.1 ? "bad" : left(tight.budget) < 0.25 ? "warn" : "" }
      : { key: "tight", name: "Tightest budget", value: "–", more: "nothing is spent yet" },
  );
  return list;
}

function tightest() {
  let found = null;
  let most = 0;
  for (const account of model.accounts.values()) {
    for (const budget of account.budgets ?? []) {
      const forecast = account.forecasts?.[budget.resource];
      const score = budget.used ? urgency({ account: {}, budget, forecast }, now()) : 0; // a cool-down has words of its own
      if (score > most) [found, most] = [{ account, budget }, score];
    }
  }
  return found;
}

/** A budget that is back sooner than this, in ms, needs nobody. */
const WORTH = 30000;

/** What needs somebody, the worst first. */
function alerts() {
  const list = [];
  if (!model.heard) return list;
  const { store, refused } = model.state;
  if (store.lost) list.push({ tone: "bad", text: `The store has not answered for ${span(-until(store.lost))}: this replica goes on with what it has set aside.` });
  else if (model.trouble) list.push({ tone: "bad", text: `The accounts cannot be listed: ${model.trouble}` });
  const cooling = [...model.accounts.values()].filter((a) => a.blocked_until && Date.parse(a.blocked_until) > now());
  if (cooling.length) list.push({ tone: "bad", text: `${plural(cooling.length, "account")} in a cool-down: ${names(cooling.map((a) => a.account))}.` });
  if (refused?.length) list.push({ tone: "warn", text: `The API refuses ${plural(refused.length, "credential")}: ${names(refused.map((c) => c.credential))}.` });
  const early = [];
  for (const a of model.accounts.values()) {
    for (const b of a.budgets ?? []) {
      const f = a.forecasts?.[b.resource];
      if (f?.early && until(f.ends) > 0 && Date.parse(b.reset) - Date.parse(f.ends) > WORTH) early.push({ a, b, f, dark: Date.parse(b.reset) - Date.parse(f.ends) });
    }
  }
  early.sort((x, y) => y.dark - x.dark);
  for (const { a, b, f, dark } of early.slice(0, 3)) {
    list.push({ tone: "warn", text: `${b.resource} of ${a.account} ends in ${span(until(f.ends))} at this rate, ${span(dark / 1000)} before its reset; ${amount(b.resource, b.remaining)} left.` });
  }
  if (early.length > 3) list.push({ tone: "warn", text: `${plural(early.length - 3, "more budget ends", "more budgets end")} before the reset at this rate: the list below has them, the most critical first.` });
  if (!list.length) list.push({ tone: "good", text: "Nothing needs you: no cool-down, no budget that ends early, store and credentials are well." });
  return list;
}

const names = (list) => (list.length > 3 ? `${list.slice(0, 3).join(", ")} and ${count(list.length - 3)} more` : list.join(", "));

function alert() {
  const words = el("span");
  const node = el("p", { class: "alert" }, el("span", { class: "alert-mark", "aria-hidden": "true" }), words);
  node.update = (a) => {
    node.dataset.tone = a.tone;
    say(words, a.text);
  };
  return node;
}

draws(["series", "accounts", "state"], () => keep(byId("tiles"), tiles(), (t) => t.key, tile));
draws(["accounts", "state"], () => {
  const list = alerts().map((a, i) => ({ ...a, key: String(i) }));
  keep(byId("alerts"), list, (a) => a.key, alert);
});
