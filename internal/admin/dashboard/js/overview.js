// The answer to "Will we run out?", with its numbers and alerts.

import { byId, el, reconcile, setText } from "./dom.js";
import { clock, count, formatSeconds, plural } from "./format.js";
import { model, now, registerPanel, until } from "./model.js";
import { MIN_BLOCKED, rows, urgent } from "./risk.js";
import { visible } from "./route.js";

/** Creates a tile with a name, a value and a detail. */
export function createTile(item) {
  const value = el("span", { class: "tile-value" });
  const detail = el("span", { class: "tile-more" });
  const node = el("div", { class: "tile", "data-tile": item.key }, el("span", { class: "tile-name" }, item.name), value, detail);
  node.update = (i) => {
    setText(value, i.value);
    setText(detail, i.detail);
    detail.title = i.title ?? "";
    node.dataset.tone = i.tone ?? "";
  };
  return node;
}

/** Shows the answer to the question of a screen. */
export function drawAnswer(id, text, tone = "") {
  const node = byId(id);
  if (model.lost) [text, tone] = [`Unknown. The gateway has not responded since ${clock(model.lost)}.`, "bad"];
  setText(node, text);
  node.dataset.tone = tone;
}

const isBlocked = (account) => !account.closed_since && account.blocked_until && Date.parse(account.blocked_until) > now();
const blockedAccounts = () => [...model.accounts.values()].filter((a) => a.closed_since || isBlocked(a));
const nameOf = ({ budget, account }) => `${budget.resource} of ${account.label}`;

const exhaustedText = (row) => `${nameOf(row)} is exhausted for ${formatSeconds((row.reset - now()) / 1000)}`;
const earlyText = (row) => `${nameOf(row)} runs out in ${formatSeconds((row.ends - now()) / 1000)}, ${formatSeconds(row.blocked / 1000)} before its reset`;

function answer() {
  if (!model.ready) return ["Waiting for the gateway."];
  if (model.error) return ["Unknown. The accounts cannot be listed.", "bad"];
  if (model.state.limits === "off") return ["Limits are off, so Weir counts no budget."];
  if (!rows.length) return ["No request has used a budget yet."];
  const worst = rows.find((r) => r.urgent);
  if (worst) return worst.urgent === "exhausted" ? [`Yes. ${exhaustedText(worst)}.`, "bad"] : [`Yes. ${earlyText(worst)}.`, "warn"];
  const blocked = blockedAccounts();
  if (blocked.length) return [`No budget runs out, but Weir sends nothing for ${joinNames(blocked.map((a) => a.label))}.`, "warn"];
  if (rows.some((r) => r.blocked > 0)) return [`No. At the present rate, no budget runs out more than ${MARGIN} before its reset.`, "good"];
  return ["No. At the present rate, every budget lasts until its reset.", "good"];
}

const MARGIN = formatSeconds(MIN_BLOCKED / 1000);

function tiles() {
  if (!model.ready) return [];
  const exhausted = urgent("exhausted").length, early = urgent("early").length;
  let inFlight = 0;
  for (const a of model.accounts.values()) inFlight += a.in_flight;
  const waiting = Object.values(model.state.waiting ?? {}).reduce((a, b) => a + b, 0), blocked = blockedAccounts().length;
  return [
    { key: "exhausted", name: "Exhausted now", value: count(exhausted), detail: `of ${plural(rows.length, "budget")}`, tone: exhausted ? "bad" : "" },
    { key: "early", name: "Will run out early", value: count(early), detail: `${MARGIN} or more before the reset, at the present rate`, tone: early ? "warn" : "" },
    { key: "blocked", name: "In a cool-down", value: count(blocked), detail: `of ${plural(model.accounts.size, "account")}`, tone: blocked ? "bad" : "" },
    { key: "in-flight", name: "In flight · waiting", value: `${count(inFlight)} · ${count(waiting)}`, detail: "requests now", tone: waiting > 50 ? "warn" : "" },
  ].map((t) => (model.error ? { ...t, value: "–", detail: "unknown", tone: "" } : t));
}

/** Returns the alerts about accounts and credentials, the most severe first. */
function alerts() {
  const list = [];
  if (!model.ready) return list;
  const { refused } = model.state;
  const closed = [...model.accounts.values()].filter((a) => a.closed_since);
  if (closed.length) list.push({ tone: "bad", text: `${plural(closed.length, "account")} closed after failed probes: ${joinNames(closed.map((a) => a.label))}. Open an account with weir account open NAME.` });
  const blocked = [...model.accounts.values()].filter(isBlocked);
  if (blocked.length) list.push({ tone: "bad", text: `${plural(blocked.length, "account")} in a cool-down: ${joinNames(blocked.map((a) => a.label))}.` });
  if (refused?.length) list.push({ tone: "warn", text: `The upstream rejects ${plural(refused.length, "credential")}: ${joinNames(refused.map((c) => c.credential))}.` });
  return list;
}

/** Returns the alerts that every screen shows. */
function banner() {
  if (model.lost) return [{ tone: "bad", text: `The gateway does not respond. This page shows data of ${clock(model.lost)}, ${formatSeconds((Date.now() - model.lost) / 1000)} ago.` }];
  if (!model.ready) return [];
  const { store } = model.state;
  if (store.lost) return [{ tone: "bad", text: `The store has not responded for ${formatSeconds(-until(store.lost))}. This replica continues within the quota that it has leased.${model.error ? " The budgets shown are older." : ""}` }];
  return model.error ? [{ tone: "bad", text: `The accounts cannot be listed: ${model.error}` }] : [];
}

/** Joins names for a sentence, which has the first three of more. */
export function joinNames(list) {
  const parts = list.length > 3 ? [...list.slice(0, 3), `${count(list.length - 3)} more`] : list;
  return parts.length > 1 ? `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}` : parts.join("");
}

function createAlert() {
  const text = el("span");
  const node = el("p", { class: "alert" }, el("span", { class: "alert-mark", "aria-hidden": "true" }), text);
  node.update = (a) => {
    node.dataset.tone = a.tone;
    setText(text, a.text);
  };
  return node;
}

function drawAlerts(id, list) {
  byId(id).hidden = list.length === 0;
  reconcile(byId(id), list.map((a, i) => ({ ...a, key: String(i) })), (a) => a.key, createAlert);
}

/** Shows a number or a sign beside a name in the navigation. */
function drawBadge(screen, text, title) {
  const badge = document.querySelector(`#nav a[data-screen=${screen}] .badge`);
  badge.hidden = !text;
  setText(badge, text);
  badge.title = title;
}

registerPanel(["accounts", "state", "route"], () => {
  drawAnswer("budgets-answer", ...answer());
  reconcile(byId("tiles"), tiles(), (t) => t.key, createTile);
  drawAlerts("alerts", alerts());
}, () => visible("budgets"));

registerPanel(["second"], () => drawAlerts("banner", banner()), () => model.lost > 0);

registerPanel(["accounts", "state"], () => {
  drawAlerts("banner", banner());
  byId("screen-budgets").dataset.old = String(Boolean(model.error));
  const n = rows.filter((r) => r.urgent).length;
  drawBadge("budgets", n > 99 ? "99+" : n ? count(n) : "", `${plural(n, "budget is", "budgets are")} exhausted or will run out early`);
  const problems = (model.state?.store.lost ? 1 : 0) + (model.state?.refused?.length ?? 0);
  drawBadge("system", problems ? count(problems) : "", plural(problems, "problem"));
});
