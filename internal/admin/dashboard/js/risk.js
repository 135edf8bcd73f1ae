// How critical a budget is. Pure functions of what the gateway tells.

/** @param {import("./model.js").Budget} b The share that is left, 0 to 1. */
export const left = (b) => (b.limit > 0 ? Math.max(0, b.remaining) / b.limit : 1);

/**
 * The tone of a budget: bad when it is nearly out, warn when it will be before its reset.
 * @param {import("./model.js").Budget} b
 * @param {import("./model.js").Forecast|undefined} f
 */
export function tone(b, f) {
  if (left(b) < 0.1) return "bad";
  if (left(b) < 0.25 || f?.early) return "warn";
  return "good";
}

/**
 * For how many seconds nothing can be sent at the present rate: until the reset where the
 * budget is spent, from its end to the reset where it ends early, else none.
 */
export function dark({ account, budget, forecast }, time) {
  const reset = (Date.parse(budget.reset) - time) / 1000;
  const blocked = account.blocked_until ? (Date.parse(account.blocked_until) - time) / 1000 : 0;
  let spent = 0;
  if (budget.limit > 0 && budget.remaining <= 0) spent = reset;
  else if (forecast?.early) spent = (Date.parse(budget.reset) - Date.parse(forecast.ends)) / 1000;
  return Math.max(0, blocked, spent);
}

/**
 * Orders budgets by how much they need somebody, the highest first: by how long nothing
 * can be sent, and how little is left; untouched ones last.
 */
export function urgency(row, time) {
  const { budget } = row;
  const used = budget.used || budget.held ? 1 - left(budget) : -1;
  return used + Math.log2(1 + dark(row, time)) / 4;
}

/** Whether the budget is one that the API does not show. */
export const secondary = (b) => /^(points|cpu|content|concurrency)(:|$)/.test(b.resource);
