// Rates how soon each budget runs out.

import { model, now, ownValue, registerPanel } from "./model.js";

/**
 * @typedef {import("./model.js").Account} Account
 * @typedef {import("./model.js").Budget} Budget
 * @typedef {{key: string, account: Account, budget: Budget, forecast?: import("./model.js").Forecast,
 *   reset: number, ends: number, blocked: number, score: number, urgent: string}} Row A budget with its times in ms.
 */

/** Returns the remaining share of a budget, 0 to 1. @param {Budget} b */
export const remainingShare = (b) => (b.limit > 0 ? Math.max(0, b.remaining) / b.limit : 1);

/**
 * Returns the tone of a row. The tone is bad if less than a tenth remains. It is warn if less than a quarter remains, or if
 * the budget runs out before its reset.
 * @param {Row} row
 */
export function tone({ budget, forecast }) {
  if (remainingShare(budget) < 0.1) return "bad";
  if (remainingShare(budget) < 0.25 || forecast?.early) return "warn";
  return "good";
}

/** Reports whether Weir counts this budget itself, because the upstream does not publish the budget. */
export const secondary = (b) => /^(points|cpu|content|concurrency)(:|$)/.test(b.resource);

/** Returns the rows of an account. */
function rowsOf(account) {
  return (account.budgets ?? []).map((budget) => {
    const forecast = ownValue(account.forecasts, budget.resource);
    return {
      key: `${account.account}\n${budget.resource}`, account, budget, forecast,
      reset: Date.parse(budget.reset), ends: forecast ? Date.parse(forecast.ends) : 0, blocked: 0, score: 0, urgent: "",
    };
  });
}

/** Returns the text of a row that the search finds. @param {Row} row */
export const textOf = ({ account, budget }) => `${account.label}\n${account.account}\n${budget.resource}`.toLowerCase();

/**
 * Rates a row. The field blocked is the time in ms in which no request can be sent at the present rate. An exhausted
 * budget is blocked until its reset. A budget that runs out early is blocked from that time until its reset. The score grows with the
 * blocked time, also by a cool-down of the account, and with the used share. Unused budgets have the lowest score. The
 * field urgent is "exhausted", "early" or empty.
 */
function rate(row, time) {
  const { account, budget, forecast } = row;
  row.blocked = 0;
  if (budget.limit > 0 && budget.remaining <= 0) row.blocked = Math.max(0, row.reset - time);
  else if (forecast?.early) row.blocked = Math.max(0, row.reset - row.ends);
  const coolDown = account.blocked_until ? Date.parse(account.blocked_until) - time : 0;
  const used = budget.used || budget.held ? 1 - remainingShare(budget) : -1;
  if (budget.limit > 0 && budget.remaining <= 0 && row.reset > time) row.urgent = "exhausted";
  else row.urgent = forecast?.early && row.ends > time && row.blocked > MIN_BLOCKED ? "early" : "";
  row.score = used + Math.log2(1 + Math.max(row.blocked, coolDown, 0) / 1000) / 4;
}

/** The rows of each account. The rows of an account that has not changed are kept. @type {Map<Account, Row[]>} */
let known = new Map();

/** All rows, those with the highest risk first. @type {Row[]} */
export let rows = [];

/** Returns the rows that are exhausted, or that run out early. @param {"exhausted"|"early"} kind */
export const urgent = (kind) => rows.filter((r) => r.urgent === kind);

/** The minimum time between exhaustion and reset, in ms, for which a budget counts as running out early. */
export const MIN_BLOCKED = 30000;

registerPanel(["accounts"], () => {
  const next = new Map(), time = now();
  rows = [];
  for (const account of model.accounts.values()) {
    const list = known.get(account) ?? rowsOf(account);
    next.set(account, list);
    for (const row of list) {
      rate(row, time);
      rows.push(row);
    }
  }
  known = next;
  rows.sort((a, b) => b.score - a.score || (a.key < b.key ? -1 : 1));
});
