// Traffic over time: what requests came to, what was saved, how long the queue is.

import uPlot from "../vendor/uPlot.js";
import { byId, el, say } from "./dom.js";
import { brief, count, plural } from "./format.js";
import { OUTCOMES, draws, model } from "./model.js";

/** The ranges: steps of ten seconds shown, and how many make a bar. */
const RANGES = [
  { name: "10 min", steps: 60, fold: 1 },
  { name: "1 hour", steps: 360, fold: 6 },
];
let range = RANGES[localStorage.getItem("weir-range") === "1" ? 1 : 0];

const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);

/** What a variable of the style sheets is in the present theme, for a canvas. */
function color(variable) {
  probe.style.color = `var(${variable})`;
  return getComputedStyle(probe).color;
}

/** A color, rgb(R, G, B), that one can see through. */
const faint = (rgb) => rgb.replace("rgb(", "rgba(").replace(")", ", 0.13)");

const sum = (list) => list.reduce((a, b) => a + b, 0);

/** The values of the range, folded into bars: sums, or the most. */
function folded(name, most) {
  const values = model.series.values[name].slice(-range.steps);
  const bars = [];
  for (let i = 0; i < values.length; i += range.fold) {
    const part = values.slice(i, i + range.fold);
    bars.push(most ? Math.max(...part) : sum(part));
  }
  return bars;
}

/** When each bar begins. */
function times() {
  const { start, step, values } = model.series;
  const first = start + (values.hit.length - range.steps) * step;
  return Array.from({ length: range.steps / range.fold }, (_, i) => first + i * range.fold * step);
}

const bars = uPlot.paths.bars({ size: [0.82, 40], align: 1 });
const lines = uPlot.paths.stepped({ align: 1 });

/**
 * What each chart shows: its series from the top of the stack down, or lines.
 * @type {{id: string, stacked?: boolean, most?: boolean, series: {name: string, label: string, color: string}[], words: (values: number[][]) => string, none: string}[]}
 */
const CHARTS = [
  {
    id: "outcomes",
    stacked: true,
    series: OUTCOMES.map((o) => ({ name: o, label: o, color: `--c-${o}` })),
    words: (v) => `${plural(sum(v.flat()), "request")}`,
    none: "No request has come in this time.",
  },
  {
    id: "saved",
    series: [{ name: "saved", label: "saved", color: "--c-hit" }, { name: "upstream", label: "sent to the API", color: "--c-stroke-sent" }],
    words: (v) => `${brief(sum(v[0]))} cost nothing`,
    none: "Nothing was sent and nothing was saved in this time.",
  },
  {
    id: "queue",
    most: true,
    series: [{ name: "in_flight", label: "in flight", color: "--c-validated" }, { name: "waiting", label: "waiting", color: "--c-waited" }],
    words: (v) => `at most ${count(Math.max(0, ...v[1]))} waited`,
    none: "Nobody waited, and no request was seen in flight in this time.",
  },
];

/** A chart in its place, with its legend. */
class Chart {
  constructor(what) {
    this.what = what;
    this.place = byId(`chart-${what.id}`);
    this.legend = byId(`legend-${what.id}`);
    this.none = el("p", { class: "empty over", hidden: true }, what.none);
    this.place.append(this.none);
    this.totals = what.series.map((s) => {
      const total = el("b");
      const mark = el("i", { class: "swatch", "aria-hidden": "true" });
      mark.style.background = `var(${s.color})`;
      const entry = el("span", { class: "legend-entry" }, mark, s.label, " ", total);
      this.legend.append(entry);
      return { total, entry };
    });
    new ResizeObserver(() => this.resize()).observe(this.place);
  }

  /** The size is that of the place. */
  size() {
    return { width: Math.max(120, this.place.clientWidth), height: this.place.clientHeight };
  }

  resize() {
    const { width, height } = this.size();
    if (this.plot && (this.plot.width !== width || this.plot.height !== height)) this.plot.setSize({ width, height });
  }

  options() {
    const muted = color("--muted"), line = color("--line");
    const axis = { stroke: muted, font: `11px ${getComputedStyle(document.body).fontFamily}`, ticks: { show: false }, grid: { stroke: line, width: 1 } };
    const hours = (u, splits) => splits.map((s) => new Date(s * 1000).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" }));
    const { what } = this;
    return {
      ...this.size(),
      padding: [8, 18, 0, 0],
      legend: { show: false },
      cursor: { points: { show: false }, drag: { x: false, y: false }, y: false },
      scales: { x: { time: true, range: (u, min, max) => [min, max + range.fold * 10] }, y: { range: (u, min, max) => [0, Math.max(max * 1.08, 4)] } },
      axes: [
        { ...axis, grid: { show: false }, values: hours, space: 64, size: 24 },
        { ...axis, values: (u, splits) => splits.map((s) => (Number.isInteger(s) ? brief(s) : "")), size: 38, space: 28 },
      ],
      series: [{}, ...what.series.map((s) => (what.stacked
        ? { fill: color(s.color), stroke: color(s.color), width: 0, paths: bars, points: { show: false } }
        : { stroke: color(s.color), fill: faint(color(s.color)), width: 1.75, paths: lines, points: { show: false } }))],
      hooks: { setCursor: [(u) => this.point(u.cursor.idx)] },
    };
  }

  /** Draws anew: in other colors, or another range. */
  rebuild() {
    this.plot?.destroy();
    this.plot = null;
    this.draw();
  }

  draw() {
    if (!model.series) return;
    const values = this.what.series.map((s) => folded(s.name, this.what.most));
    this.values = values;
    const none = sum(values.flat()) === 0;
    this.none.hidden = !none;
    this.place.classList.toggle("is-empty", none);
    say(byId(`chart-${this.what.id}-sum`), none ? "" : this.what.words(values));
    const shown = this.what.stacked ? stack(values) : values;
    const data = [times(), ...shown];
    if (this.plot) this.plot.setData(data);
    else this.plot = new uPlot(this.options(), data, this.place);
    this.plot.root.setAttribute("aria-hidden", "true"); // the legend says it in numbers
    this.point(this.plot.cursor.idx);
  }

  /** Tells the numbers of a bar, or of the whole range. */
  point(i) {
    this.values?.forEach((v, s) => {
      const whole = this.what.most ? v.at(-1) ?? 0 : sum(v);
      const n = i === null || i === undefined ? whole : v[i] ?? 0;
      say(this.totals[s].total, brief(n));
      this.totals[s].entry.classList.toggle("zero", n === 0);
    });
  }
}

/** Each on top of those that follow: drawn in this order the lower hide what is beneath. */
function stack(values) {
  const stacked = [];
  let above = values[0].map(() => 0);
  for (const v of values.toReversed()) {
    above = v.map((n, i) => n + above[i]);
    stacked.unshift(above);
  }
  return stacked;
}

const charts = CHARTS.map((c) => new Chart(c));

for (const r of RANGES) {
  byId("range").append(el("button", {
    type: "button",
    class: "segment",
    "aria-pressed": String(r === range),
    onclick() {
      range = r;
      localStorage.setItem("weir-range", RANGES.indexOf(r));
      [...byId("range").children].forEach((b, i) => b.setAttribute("aria-pressed", String(RANGES[i] === r)));
      charts.forEach((c) => c.rebuild());
    },
  }, r.name));
}

const rebuild = () => charts.forEach((c) => c.rebuild());
addEventListener("themechange", rebuild);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", rebuild);

draws(["series"], () => charts.forEach((c) => c.draw()));
