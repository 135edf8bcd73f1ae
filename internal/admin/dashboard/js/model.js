// The data of the page, and the panels that show it. Events change the model. A panel of a visible screen is redrawn at
// most twice per second, and panels that show elapsed time are redrawn once per second.

/**
 * @typedef {{resource: string, limit: number, used: number, remaining: number, reset: string, held?: number, share?: number,
 *   client?: string, guarantee?: number, nominal?: number, borrowed?: number, lent?: number}} Budget
 * @typedef {{rate: number, ends: string, early?: boolean}} Forecast
 * @typedef {{account: string, label: string, kind: string, in_flight: number, concurrent: number, blocked_until?: string, closed_since?: string,
 *   budgets: Budget[]|null, waiting?: number, forecasts?: Record<string, Forecast>,
 *   clients?: Record<string, {waiting?: number, denied?: number}>}} Account
 * @typedef {{requests: number, spent: number, upstream: number, saved: number}} Use
 * @typedef {Use & {client: string, client_label: string, operation?: string, tag?: string, account?: string, version?: string, account_label?: string, before?: Use}} Spender
 * @typedef {{id: string, start: string, method: string, route: string, operation: string, graphql_operation?: string, account: string, account_label?: string, client?: string, tag?: string,
 *   resource: string, path?: string, until?: string, status: number, bytes: number, elapsed_ns: number, cache: string, background?: boolean, waited_ns: number,
 *   attempts: number, spent: number, limited?: string, limit_answer?: string, error?: string, trace_id?: string, outcome: string, result: string, why: string,
 *   stages?: {name: string, start_ns: number, elapsed_ns: number, detail?: string, failed?: boolean}[]}} Request
 */

/** The maximum number of requests in the model: the latest, the latest of a rare kind, and the slowest. */
export const MAX_REQUESTS = 256;
const MAX_OF_KIND = 128;
const MAX_SLOW = 32;
/** The number of steps in a series of the gateway. */
const STEPS = 360;

export const OUTCOMES = ["hit", "stale", "validated", "miss", "waited", "refused", "limited", "error"];

export const model = {
  /** @type {Map<string, Account>} */ accounts: new Map(),
  /** Set after the first state event. */ ready: false,
  /** The reason why the accounts cannot be listed. */ error: "",
  /** @type {{start: number, step: number, values: Record<string, number[]>, before: Record<string, number>}|null} */ series: null,
  /** @type {{operations: any[], spenders: Spender[], tags: Spender[], accounts: Spender[], versions: Spender[]}} */ costs: { operations: [], spenders: [], tags: [], accounts: [], versions: [] },
  /** @type {any} */ state: null,
  /** @type {Request[]} */ requests: [],
  /** Set after the list of requests has been loaded. */ requestsLoaded: false,
  skipped: 0,
  /** The time of the last data in ms, while the gateway does not respond; otherwise 0. */ lost: 0,
  /** The configuration in force, or null before it is loaded. @type {any} */ configuration: null,
  /** The gateway's clock minus the browser's clock, in ms. */ skew: 0,
};

/** Returns the time of the gateway's clock in ms, or of the last data while the gateway does not respond. */
export const now = () => (model.lost || Date.now()) + model.skew;

/** Returns the seconds from now to a time of the gateway's clock. */
export const until = (time) => (Date.parse(time) - now()) / 1000;

/**
 * Returns the value of a name that the upstream, a client or the configuration has chosen. A plain look-up of the name
 * "constructor" would find a member of every object.
 * @template T
 * @param {Record<string, T>|null|undefined} values
 * @param {string} name
 * @returns {T|undefined}
 */
export const ownValue = (values, name) => (values && Object.hasOwn(values, name) ? values[name] : undefined);

/** Returns the label of an account for people. The name of an account may be a hash. */
export const labelOf = (account) => model.accounts.get(account)?.label ?? account.replace(/^([0-9a-f]{8})[0-9a-f]{24}$/, "account $1");

/** Reports whether the process has two complete hours of history. */
export const comparable = () => Boolean(model.state) && -until(model.state.started) >= 2 * 3600;

const panels = [];

/**
 * Registers a function that redraws a panel after one of its topics has changed. The topics are accounts, series, costs,
 * state, requests, lines, trends, configuration, route and second.
 * @param {string[]} topics
 * @param {() => void} draw
 * @param {() => boolean} [isVisible] returns false while the panel is hidden; a hidden panel is drawn when it becomes visible
 */
export function registerPanel(topics, draw, isVisible = () => true) {
  panels.push({ topics, draw, isVisible, due: true });
  schedule();
}

/** Redraws the panels of a topic. A change of the route is drawn immediately. @param {string} topic */
export function changed(topic) {
  for (const p of panels) if (p.topics.includes(topic)) p.due = true;
  if (topic === "route") drawDue();
  else schedule();
}

/** The minimum time between two draws, in ms. */
const DRAW_INTERVAL = 500;
let timer = 0, drawn = -DRAW_INTERVAL;

function schedule() {
  if (!timer) timer = setTimeout(drawDue, Math.max(60, drawn + DRAW_INTERVAL - performance.now()));
}

/** Draws all visible panels that are due together, so that no panel contradicts another. */
function drawDue() {
  clearTimeout(timer);
  timer = 0;
  drawn = performance.now();
  for (const p of panels) {
    if (!p.due || !p.isVisible()) continue;
    p.due = false;
    try {
      p.draw();
    } catch (error) {
      console.error(error); // an error in one panel must not stop the others
    }
  }
}

/** The handler of each server-sent event. */
export const eventHandlers = {
  accounts(data) {
    if (data.all) model.accounts.clear();
    for (const a of data.changed) model.accounts.set(a.account, a);
    for (const name of data.gone) model.accounts.delete(name);
    model.error = data.error ?? "";
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
    model.ready = true;
    changed("state");
  },
  request(data) {
    if (model.requests.some((r) => r.id === data.id)) return;
    data.received = performance.now();
    model.requests = trim([data, ...model.requests]);
    changed("requests");
  },
  skipped(data) {
    model.skipped += data.requests;
  },
};

/** Keeps the latest requests, and older ones that were refused, failed or are among the slowest. The gateway keeps the same kinds. */
function trim(requests) {
  if (requests.length <= MAX_REQUESTS) return requests;
  const kinds = { refused: MAX_OF_KIND, error: MAX_OF_KIND };
  const slowest = new Set(requests.toSorted((a, b) => b.elapsed_ns - a.elapsed_ns).slice(0, MAX_SLOW));
  return requests.filter((r, i) => {
    const kind = r.result === "limited" ? "refused" : r.result;
    const room = Object.hasOwn(kinds, kind) && kinds[kind]-- > 0;
    return i < MAX_REQUESTS || room || slowest.has(r);
  });
}

/** Sets the time of the last data, or 0 after the gateway has responded. Every screen says when its data are old. */
export function setLost(time) {
  if (model.lost === time) return;
  model.lost = time;
  document.documentElement.dataset.lost = time ? "true" : "false";
  for (const topic of ["state", "accounts", "costs", "requests"]) changed(topic);
}

/** Merges the latest steps into the series, and drops steps older than an hour. */
function append(series, latest) {
  series.before = latest.before;
  for (const [name, points] of Object.entries(latest.values)) {
    const values = series.values[name];
    points.forEach((value, i) => {
      values[(latest.start - series.start) / series.step + i] = value;
    });
    for (let i = 0; i < values.length; i++) values[i] ??= 0;
  }
  const excess = series.values.hit.length - STEPS;
  if (excess > 0) {
    series.start += excess * series.step;
    for (const values of Object.values(series.values)) values.splice(0, excess);
  }
}

/**
 * Replaces the requests, the series and the costs by loaded data. The argument sent is the time at which the page requested
 * the data. Requests whose event arrived later stay in the list.
 */
export function resetTo(requests, series, sent) {
  const loaded = new Set(requests.map((r) => r.id));
  const newer = model.requests.filter((r) => r.received >= sent && !loaded.has(r.id));
  model.requests = trim([...newer, ...requests]);
  model.requestsLoaded = true;
  model.series = { start: series.start, step: series.step, values: series.values, before: series.before };
  model.costs = { operations: series.operations, spenders: series.spenders, tags: series.tags, accounts: series.accounts, versions: series.versions };
  for (const topic of ["requests", "series", "costs"]) changed(topic);
}

setInterval(() => changed("second"), 1000);
