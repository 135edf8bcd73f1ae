// Formats numbers and times.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** Joins a number and its unit, which stay in the same line. */
const unit = (n, name) => `${n}\u00a0${name}`;

/** Formats a number: 12,345 */
export const count = (n) => whole.format(n);

/** Formats a number up to 9,999 exactly, and larger numbers in short form: 12.3K */
export const brief = (n) => (n < 10000 ? whole.format(n) : compact.format(n));

/** Formats a share: 87 %. A share below the total is never rounded up to 100 %. */
export function percent(part, total) {
  if (!total) return "–";
  const p = (100 * part) / total;
  return unit(p < 100 && p > 99 ? 99 : p > 0 && p < 1 ? "<1" : Math.round(p), "%");
}

/** Formats a duration in seconds: 42 s, 3 min 20 s, 2 h 5 min */
export function formatSeconds(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return unit(s, "s");
  if (s < 600 && s % 60) return `${unit(Math.floor(s / 60), "min")} ${unit(s % 60, "s")}`;
  if (s < 3600) return unit(Math.round(s / 60), "min");
  if (s < 86400) return `${unit(Math.floor(s / 3600), "h")} ${unit(Math.floor((s % 3600) / 60), "min")}`;
  return `${unit(Math.floor(s / 86400), "d")} ${unit(Math.floor((s % 86400) / 3600), "h")}`;
}

/** Formats a duration in nanoseconds: 90 µs, 4.2 ms, 1.25 s */
export function formatNanoseconds(ns) {
  if (!ns) return "0";
  if (ns < 1e6) return unit(Math.max(1, Math.round(ns / 1e3)), "µs");
  if (ns < 1e7) return unit((ns / 1e6).toFixed(1), "ms");
  if (ns < 1e9) return unit(Math.round(ns / 1e6), "ms");
  if (ns < 1e10) return unit((ns / 1e9).toFixed(2), "s");
  if (ns < 6e10) return unit((ns / 1e9).toFixed(1), "s");
  return formatSeconds(ns / 1e9);
}

const timeOfDay = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });

/** Formats a local time: 14:03:21 */
export const clock = (time) => timeOfDay.format(new Date(time));

/** Formats a local date and time: 3 Nov, 14:03:21 */
export const date = (time) => new Date(time).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });

/** Formats a number of bytes: 12.5 MiB */
export function bytes(n) {
  for (const [name, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (n >= size) return unit((n / size).toFixed(n >= 100 * size ? 0 : 1), name);
  }
  return unit(n, "B");
}

/** Formats an amount of a budget. The cpu budgets count milliseconds, and all other budgets requests or points. */
export function amount(resource, n) {
  if (!/^cpu(:|$)/.test(resource)) return count(n);
  return unit((n / 1000).toFixed(n >= 100000 ? 0 : 1), "s");
}

/** Formats a number with its noun: 3 requests, 1 request */
export const plural = (n, singular, several = `${singular}s`) => `${count(n)} ${n === 1 ? singular : several}`;

/** Compares a number with the hour before: ▲ 12 %, ▼ 3 %, equal, or an empty text without a number before. */
export function change(n, before) {
  if (!before) return "";
  const p = Math.round((100 * (n - before)) / before);
  return p === 0 ? "equal" : p > 999 ? unit("▲", `${Math.round(n / before)}×`) : unit(p > 0 ? "▲" : "▼", unit(Math.abs(p), "%"));
}
