// The class Chart, and the charts of the last hour: requests by outcome, saved and forwarded requests, and the queue.

import uPlot from "../vendor/uPlot.js";
import { byId, el, setText } from "./dom.js";
import { brief, count, plural } from "./format.js";
import { OUTCOMES, model, registerPanel } from "./model.js";
import { range as minutes } from "./requests.js";
import { visible } from "./route.js";

/** The range of the charts: the number of steps of ten seconds, and the number of steps per bar. */
let range = { steps: 360, stepsPerBar: 6 };

const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);

/** Returns the color of a CSS variable in the present theme, in a form that a canvas accepts. */
function color(variable) {
  probe.style.color = `var(${variable})`;
  return getComputedStyle(probe).color;
}

/** Returns a transparent version of a color in the form rgb(R, G, B). */
const transparent = (rgb) => rgb.replace("rgb(", "rgba(").replace(")", ", 0.13)");

const sum = (list) => list.reduce((a, b) => a + b, 0);

/** Returns one value per bar of the range: the sum or the maximum of the bar's steps. */
function barValues(name, useMax) {
  const values = model.series.values[name].slice(-range.steps);
  const result = [];
  for (let i = 0; i < values.length; i += range.stepsPerBar) {
    const steps = values.slice(i, i + range.stepsPerBar);
    result.push(useMax ? Math.max(...steps) : sum(steps));
  }
  return result;
}

/** Returns the start time of each bar. */
function barTimes() {
  const { start, step, values } = model.series;
  const first = start + (values.hit.length - range.steps) * step;
  return Array.from({ length: range.steps / range.stepsPerBar }, (_, i) => first + i * range.stepsPerBar * step);
}

/** Returns the data of a chart of the last hour. */
const lastHour = ({ series, useMax }) => model.series && { times: barTimes(), seconds: range.stepsPerBar * 10, values: series.map((s) => barValues(s.name, useMax)) };

const bars = uPlot.paths.bars({ size: [0.82, 40], align: 1 });

/**
 * The definition of a chart. A stacked chart lists its series from top to bottom. Other charts are drawn as lines. By
 * default, numbers have the short form, the legend shows the sum of each series, and the axis ends above the largest value.
 * @typedef {{id: string, screen: string, stacked?: boolean, useMax?: boolean, series: {name?: string, label: string, color: string}[], summary?: (values: number[][]) => string,
 *   emptyText?: string, format?: (n: number|null) => string, total?: (values: (number|null)[]) => number, max?: number}} Definition
 */

/** @type {Definition[]} */
const CHARTS = [
  {
    id: "outcomes",
    screen: "requests",
    stacked: true,
    series: OUTCOMES.map((o) => ({ name: o, label: o, color: `--c-${o}` })),
    summary: (v) => `${plural(sum(v.flat()), "request")}`,
    emptyText: "No requests in this time.",
  },
  {
    id: "saved",
    screen: "spending",
    series: [{ name: "saved", label: "saved", color: "--c-hit" }, { name: "upstream", label: "forwarded", color: "--c-stroke-sent" }],
    summary: (v) => `${brief(sum(v[0]))} saved`,
    emptyText: "No request was saved or forwarded in this time.",
  },
  {
    id: "queue",
    screen: "requests",
    useMax: true,
    series: [{ name: "in_flight", label: "in flight", color: "--c-validated" }, { name: "waiting", label: "waiting", color: "--c-waited" }],
    summary: (v) => `at most ${count(Math.max(0, ...v[1]))} waiting`,
    emptyText: "No request was in flight or waiting in this time.",
  },
];

/** The distances of the numbers at an axis of counts. */
const WHOLE = Array.from({ length: 30 }, (_, i) => [1, 2, 5][i % 3] * 10 ** Math.floor(i / 3));

/** All charts, for a change of the theme. */
const charts = new Set();

/** A chart with its legend. */
export class Chart {
  /**
   * @param {Definition} definition
   * @param {(definition: Definition) => {times: number[], seconds: number, values: (number|null)[][]}|null} read returns the start time of each bar, the length of a bar, and the values of each series
   */
  constructor(definition, read = lastHour) {
    Object.assign(this, { definition, read, format: definition.format ?? brief, plot: null });
    this.parent = byId(`chart-${definition.id}`);
    this.legend = byId(`legend-${definition.id}`);
    this.empty = el("p", { class: "empty over", hidden: true }, definition.emptyText);
    this.parent.replaceChildren(this.empty);
    this.legend.replaceChildren();
    this.totals = definition.series.map((s) => {
      const total = el("b");
      const swatch = el("i", { class: "swatch", "aria-hidden": "true" });
      swatch.style.background = `var(${s.color})`;
      const entry = el("span", { class: "legend-entry", title: s.label }, swatch, el("span", { class: "cut" }, s.label), total);
      this.legend.append(entry);
      return { total, entry };
    });
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.parent);
    charts.add(this);
  }

  /** Removes the plot, so that another chart can use the same elements. */
  remove() {
    this.plot?.destroy();
    this.observer.disconnect();
    charts.delete(this);
  }

  size() {
    return { width: Math.max(120, this.parent.clientWidth), height: this.parent.clientHeight };
  }

  resize() {
    const { width, height } = this.size();
    if (this.plot && (this.plot.width !== width || this.plot.height !== height)) this.plot.setSize({ width, height });
  }

  options() {
    const muted = color("--muted"), line = color("--line");
    const axis = { stroke: muted, font: `11px ${getComputedStyle(document.body).fontFamily}`, ticks: { show: false }, grid: { stroke: line, width: 1 } };
    const hours = (u, splits) => splits.map((s) => {
      const time = new Date(s * 1000);
      return time.getHours() || time.getMinutes() ? time.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" }) : time.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
    });
    const { definition } = this;
    return {
      ...this.size(),
      padding: [8, 26, 0, 0],
      legend: { show: false },
      cursor: { points: { show: false }, drag: { x: false, y: false }, y: false },
      scales: { x: { time: true, range: () => [this.times[0], this.times.at(-1) + this.seconds] }, y: { range: (u, min, max) => [0, definition.max ?? Math.max(max * 1.08, 4)] } },
      axes: [
        { ...axis, grid: { show: false }, values: hours, space: 64, size: 24 },
        { ...axis, values: (u, splits) => splits.map(this.format), size: 38, space: 28, incrs: definition.max ? undefined : WHOLE },
      ],
      series: [{}, ...definition.series.map((s) => (definition.stacked
        ? { fill: color(s.color), stroke: color(s.color), width: 0, paths: bars, points: { show: false } }
        : { stroke: color(s.color), fill: definition.max ? undefined : transparent(color(s.color)), width: 1.75, points: { show: false } }))],
      hooks: { setCursor: [(u) => this.updateLegend(definition.stacked ? u.cursor.idx : u.cursor.idx && u.cursor.idx >> 1)] },
    };
  }

  /** Recreates the plot after a change of theme or range. */
  rebuild() {
    this.plot?.destroy();
    this.plot = null;
    this.draw();
  }

  draw() {
    const { definition } = this, current = visible(definition.screen) && this.read(definition);
    if (!current) return;
    const { times, seconds, values } = current;
    Object.assign(this, { times, seconds, values });
    const isEmpty = Boolean(definition.emptyText) && sum(values.flat()) === 0;
    this.empty.hidden = !isEmpty;
    this.parent.classList.toggle("is-empty", isEmpty);
    if (definition.summary) setText(byId(`chart-${definition.id}-sum`), isEmpty ? "" : definition.summary(values));
    // A line has a point at the beginning and at the end of each step, so that a single step is visible.
    const data = definition.stacked ? [times, ...stack(values)] : [times.flatMap((t) => [t, t + seconds]), ...values.map((v) => v.flatMap((n) => [n, n]))];
    if (this.plot) this.plot.setData(data);
    else this.plot = new uPlot(this.options(), data, this.parent);
    this.plot.root.setAttribute("aria-hidden", "true"); // the legend has the same numbers as text
    this.updateLegend(this.plot.cursor.idx);
  }

  /** Shows the numbers of the bar with this index. Without an index, shows the numbers of the whole range. */
  updateLegend(index) {
    this.values?.forEach((v, s) => {
      const whole = this.definition.total?.(v) ?? (this.definition.useMax ? v.at(-1) ?? 0 : sum(v));
      const n = index === null || index === undefined ? whole : v[index] ?? null;
      setText(this.totals[s].total, this.format(n));
      this.totals[s].entry.classList.toggle("zero", n === 0 && !this.definition.max); // a budget of 0 is important
    });
  }
}

/** Adds to each series the sum of all series after it, so that later series cover the lower part of earlier bars. */
function stack(values) {
  const stacked = [];
  let height = [];
  for (const v of values.toReversed()) {
    height = v.map((n, i) => n + (height[i] ?? 0));
    stacked.unshift(height);
  }
  return stacked;
}

const ofLastHour = CHARTS.map((definition) => new Chart(definition));

const rebuild = () => charts.forEach((c) => c.rebuild());
addEventListener("themechange", rebuild);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", rebuild);

registerPanel(["route"], () => {
  if (range.steps === minutes() * 6) return;
  range = { steps: minutes() * 6, stepsPerBar: minutes() > 10 ? 6 : 1 };
  ofLastHour.forEach((c) => c.rebuild());
});
registerPanel(["series", "route"], () => ofLastHour.forEach((c) => c.draw()));
