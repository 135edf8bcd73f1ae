// Draws the charts over days. The gateway reads their data from Prometheus. The page loads the data while a panel with
// these charts is visible.

import { Chart } from "./charts.js";
import { byId, el, setText } from "./dom.js";
import { filter } from "./filters.js";
import { brief, percent } from "./format.js";
import { request } from "./live.js";
import { changed, labelOf, model, registerPanel } from "./model.js";
import { linkWith, visible } from "./route.js";

/** The time until the next load in ms: after a success, and after an error. */
const INTERVAL = 300000;
const RETRY_INTERVAL = 60000;

/** The time ranges in days. */
const RANGES = { 1: "1 day", 7: "7 days", 30: "30 days" };
const DEFAULT_DAYS = "7";

/** The colors by position in the report, which has at most seven clients and eight budgets. The other clients have --c-miss. */
const COLORS = ["--c-hit", "--c-validated", "--c-waited", "--c-refused", "--c-stale", "--good", "--c-error", "--c-stroke-sent"];

/** Returns the number of days that the URL of the page selects. */
const days = () => (Object.hasOwn(RANGES, filter("days")) ? filter("days") : DEFAULT_DAYS);

const configured = () => Boolean(model.configuration?.admin?.prometheus?.url);

const sum = (list) => list.reduce((a, b) => a + b, 0);

/**
 * The last report of the selected days, or null until one is loaded.
 * @type {{start: number, step: number, spent: {client: string, values: number[]}[], others: number[], saved: number[], refused: number[],
 *   budgets: {account: string, resource: string, values: (number|null)[]}[]}|null}
 */
let report = null;
let error = "";

/** The days of the last request, and the time of the next request. */
let requested = "", due = 0;

/** Loads the report if the days have changed or the next load is due, unless the tab is hidden or no Prometheus is configured. */
async function load() {
  const wanted = days();
  if (!configured() || document.hidden || (wanted === requested && performance.now() < due)) return;
  if (wanted !== requested) [report, error] = [null, ""];
  requested = wanted;
  due = performance.now() + INTERVAL;
  let loaded = null, failure = "";
  try {
    loaded = await request(`/api/v1/trends?range=${wanted}d`);
  } catch (e) {
    failure = e.message;
  }
  if (wanted !== requested) return; // the user has selected other days
  if (failure) due = performance.now() + RETRY_INTERVAL;
  if (loaded) report = loaded;
  error = failure;
  changed("trends");
}

/** Returns the definitions of the charts. */
function definitions() {
  const spent = report.spent.map(({ client, values }, i) => ({ label: client, color: COLORS[i], values }));
  if (sum(report.others)) spent.push({ label: "others", color: "--c-miss", values: report.others });
  return [
    { id: "trends-spent", screen: "spending", stacked: true, series: spent, summary: (v) => `${brief(sum(v.flat()))} spent`, emptyText: "No quota was spent in this time." },
    {
      id: "trends-saved",
      screen: "spending",
      series: [{ label: "saved", color: "--c-hit", values: report.saved }, { label: "refused", color: "--c-refused", values: report.refused }],
      summary: (v) => `${brief(sum(v[0]))} saved, ${brief(sum(v[1]))} refused`,
      emptyText: "No request was saved or refused in this time.",
    },
    {
      id: "trends-budgets",
      screen: "budgets",
      series: report.budgets.map(({ account, resource, values }, i) => ({ label: `${resource} of ${labelOf(account)}`, color: COLORS[i], values })),
      format: (share) => (share === null ? "–" : share > 0 ? percent(share, 1) : "0 %"),
      total: (values) => Math.min(...values.filter((v) => v !== null)),
      max: 1,
    },
  ];
}

let charts = [], drawnReport = null, drawnLabels = "";

/** Replaces the charts after a change of the report or of a label, and draws the visible charts that are not drawn yet. */
function drawCharts() {
  const list = definitions(), labels = list.flatMap((d) => d.series.map((s) => s.label)).join("\n");
  if (report !== drawnReport || labels !== drawnLabels) {
    [drawnReport, drawnLabels] = [report, labels];
    charts.forEach((c) => c.remove());
    const { start, step } = report, times = report.saved.map((_, i) => start + i * step);
    charts = list.map((d) => new Chart(d, () => ({ times, seconds: step, values: d.series.map((s) => s.values) })));
  }
  charts.forEach((c) => c.plot || c.draw());
}

const EMPTY = "Prometheus has no requests of Weir in this time. It needs two scrapes of a replica that serves requests. Configure it to scrape /metrics of every replica.";

/** Shows a panel with its charts, or with a text that explains why it has none. Hides the panel if no Prometheus is configured. */
function drawPanel(id, isEmpty) {
  const parent = byId(id);
  parent.hidden = !configured();
  const text = error || (!report ? "Waiting for Prometheus." : isEmpty() ? EMPTY : "");
  const state = parent.querySelector("[role=status]");
  setText(state, text);
  state.hidden = !text;
  parent.querySelector(".trends").hidden = !report || isEmpty();
}

const shown = () => visible("spending") || visible("budgets");

registerPanel(["trends", "accounts", "configuration", "route"], () => {
  load();
  drawPanel("trends-spending", () => !report.spent.length && !sum(report.others) && !sum(report.saved) && !sum(report.refused));
  drawPanel("trends-budgets", () => !report.budgets.length);
  if (report) drawCharts();
}, shown);

registerPanel(["second"], load, shown);

for (const parent of document.querySelectorAll(".days")) {
  for (const [number, text] of Object.entries(RANGES)) {
    const link = el("a", { class: "segment" }, text);
    parent.append(link);
    registerPanel(["route"], () => {
      link.setAttribute("href", linkWith({ days: number === DEFAULT_DAYS ? "" : number }));
      if (number === days()) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    });
  }
}
