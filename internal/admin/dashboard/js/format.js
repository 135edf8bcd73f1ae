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

const units = [["d", 86400], ["h", 3600], ["m", 60], ["s", 1]];

/** Formats the two largest units of a duration in seconds, as internal/durations does: 42s, 3m20s, 2h5m. Also 1d4h. */
export function formatSeconds(seconds) {
  const s = Math.max(0, Math.round(seconds));
  const i = units.findIndex(([, length]) => s >= length);
  if (i < 0) return "0s";
  const [[large, length], [small, next]] = [units[i], units[i + 1] ?? ["", Infinity]];
  const rest = Math.floor((s % length) / next);
  return `${Math.floor(s / length)}${large}` + (rest ? `${rest}${small}` : "");
}

/** Formats three digits of a duration in nanoseconds: 90µs, 4.2ms, 1.25s */
export function formatNanoseconds(ns) {
  if (!ns) return "0s";
  if (ns >= 6e10) return formatSeconds(ns / 1e9);
  const [name, length] = ns >= 1e9 ? ["s", 1e9] : ns >= 1e6 ? ["ms", 1e6] : ["µs", 1e3];
  return `${Number((ns / length).toPrecision(3))}${name}`;
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
  return `${(n / 1000).toFixed(n >= 100000 ? 0 : 1)}s`;
}

/** Formats a number with its noun: 3 requests, 1 request */
export const plural = (n, singular, several = `${singular}s`) => `${count(n)} ${n === 1 ? singular : several}`;

/** Compares a number with the hour before: ▲ 12 %, ▼ 3 %, equal, or an empty text without a number before. */
export function change(n, before) {
  if (!before) return "";
  const p = Math.round((100 * (n - before)) / before);
  return p === 0 ? "equal" : p > 999 ? unit("▲", `${Math.round(n / before)}×`) : unit(p > 0 ? "▲" : "▼", unit(Math.abs(p), "%"));
}
