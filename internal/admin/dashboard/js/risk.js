// Rates how critical a budget is. The functions are pure: their results depend only on the arguments.

/** @param {import("./model.js").Budget} b Returns the remaining share, 0 to 1. */
export const remainingShare = (b) => (b.limit > 0 ? Math.max(0, b.remaining) / b.limit : 1);

/**
 * Returns the tone of a budget: bad if less than a tenth remains, warn if less than a quarter remains or the forecast
 * runs out before the reset.
 * @param {import("./model.js").Budget} b
 * @param {import("./model.js").Forecast|undefined} f
 */
export function tone(b, f) {
  if (remainingShare(b) < 0.1) return "bad";
  if (remainingShare(b) < 0.25 || f?.early) return "warn";
  return "good";
}

/**
 * Returns the number of seconds for which no request can be sent at the present rate. An exhausted budget blocks
 * until its reset. A budget that runs out early blocks from that time until its reset.
 */
export function blockedSeconds({ account, budget, forecast }, time) {
  const reset = (Date.parse(budget.reset) - time) / 1000;
  const coolDown = account.blocked_until ? (Date.parse(account.blocked_until) - time) / 1000 : 0;
  let exhausted = 0;
  if (budget.limit > 0 && budget.remaining <= 0) exhausted = reset;
  else if (forecast?.early) exhausted = (Date.parse(budget.reset) - Date.parse(forecast.ends)) / 1000;
  return Math.max(0, coolDown, exhausted);
}

/** Returns a score that sorts budgets by blocked time and used share. Unused budgets come last. */
export function urgency(row, time) {
  const { budget } = row;
  const used = budget.used || budget.held ? 1 - remainingShare(budget) : -1;
  return used + Math.log2(1 + blockedSeconds(row, time)) / 4;
}

/** Reports whether Weir counts this budget itself, because the upstream does not publish the budget. */
export const secondary = (b) => /^(points|cpu|content|concurrency)(:|$)/.test(b.resource);
