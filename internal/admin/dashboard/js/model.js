// What is known, and who is shown it. Events change it; panels are drawn from it, at most
// twice a second each, and once a second where time passes.

/**
 * @typedef {{resource: string, limit: number, used: number, remaining: number, reset: string, held?: number}} Budget
 * @typedef {{rate: number, ends: string, early?: boolean}} Forecast
 * @typedef {{account: string, kind: string, in_flight: number, concurrent: number, blocked_until?: string,
 *   budgets: Budget[]|null, waiting?: number, forecasts?: Record<string, Forecast>}} Account
 * @typedef {{id: string, start: string, method: string, route: string, operation: string, account: string, client?: string,
 *   resource: string, status: number, bytes: number, elapsed_ns: number, cache: string, background?: boolean, waited_ns: number,
 *   attempts: number, spent: number, error?: string, trace_id?: string, outcome: string, result: string, why: string,
 *   stages?: {name: string, start_ns: number, elapsed_ns: number, detail?: string, failed?: boolean}[]}} Request
 */

/** The most requests that are kept. */
const MOST = 256;
/** Steps of the series, as the gateway keeps them. */
const STEPS = 360;

export const OUTCOMES = ["hit", "stale", "validated", "miss", "waited", "refused", "error"];

export const model = {
  /** @type {Map<string, Account>} */ accounts: new Map(),
  heard: false,
  trouble: "",
  /** @type {{start: number, step: number, values: Record<string, number[]>}|null} */ series: null,
  costs: { operations: [], spenders: [] },
  /** @type {any} */ state: null,
  /** @type {Request[]} */ requests: [],
  skipped: 0,
  skew: 0,
};

/** The gateway's time, in milliseconds. */
export const now = () => Date.now() + model.skew;

/** Seconds from now to a time of the gateway's. */
export const until = (time) => (Date.parse(time) - now()) / 1000;

const panels = [];

/**
 * Draws a panel whenever one of its topics has changed: accounts, series, costs, state,
 * requests, second.
 * @param {string[]} topics
 * @param {() => void} draw
 */
export function draws(topics, draw) {
  panels.push({ topics, draw, due: true, last: 0 });
  soon();
}

/** @param {string} topic */
export function changed(topic) {
  for (const p of panels) if (p.topics.includes(topic)) p.due = true;
  soon();
}

const PACE = 500;
let timer = 0;

function soon() {
  if (!timer) timer = setTimeout(drawDue, 60);
}

function drawDue() {
  timer = 0;
  const at = performance.now();
  let later = false;
  for (const p of panels) {
    if (!p.due) continue;
    if (p.last && at - p.last < PACE) {
      later = true;
      continue;
    }
    p.due = false;
    p.last = at;
    try {
      p.draw();
    } catch (wrong) {
      console.error(wrong); // the other panels go on
    }
  }
  if (later) timer = setTimeout(drawDue, PACE / 4);
}

/** What each event does. */
export const events = {
  accounts(data) {
    if (data.all) model.accounts.clear();
    for (const a of data.changed) model.accounts.set(a.account, a);
    for (const gone of data.gone) model.accounts.delete(gone);
    model.trouble = data.trouble ?? "";
    changed("accounts");
  },
  series(data) {
    if (model.series) {
      append(model.series, data);
      changed("series");
    }
  },
  operations(data) {
    model.costs = data;
    changed("costs");
  },
  state(data) {
    model.state = data;
    model.skew = Date.parse(data.now) - Date.now();
    model.heard = true;
    changed("state");
  },
  request(data) {
    if (model.requests.some((r) => r.id === data.id)) return;
    data.heard = performance.now();
    model.requests.unshift(data);
    model.requests.length = Math.min(model.requests.length, MOST);
    changed("requests");
  },
  skipped(data) {
    model.skipped += data.requests;
  },
};

/** Puts the newest points in the place of older ones of the same time. */
function append(series, news) {
  for (const [name, points] of Object.entries(news.values)) {
    const own = series.values[name];
    points.forEach((value, i) => {
      own[(news.start - series.start) / series.step + i] = value;
    });
    for (let i = 0; i < own.length; i++) own[i] ??= 0;
  }
  const over = series.values.hit.length - STEPS;
  if (over > 0) {
    series.start += over * series.step;
    for (const own of Object.values(series.values)) own.splice(0, over);
  }
}

/** Puts what was asked for at once in the place of all that was known before it was. */
export function restart(requests, series, asked) {
  const told = new Set(requests.map((r) => r.id));
  const since = model.requests.filter((r) => r.heard >= asked && !told.has(r.id));
  model.requests = [...since, ...requests].slice(0, MOST);
  model.asked = true;
  model.series = { start: series.start, step: series.step, values: series.values };
  model.costs = { operations: series.operations, spenders: series.spenders };
  for (const topic of ["requests", "series", "costs"]) changed(topic);
}

setInterval(() => changed("second"), 1000);
