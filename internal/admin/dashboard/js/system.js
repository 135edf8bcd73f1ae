// The panels about the gateway itself: store, replicas, cache, audit trail, configuration.

import { byId, facts, label, placeholder, setText, table } from "./dom.js";
import { bytes, date, formatNanoseconds, formatSeconds, plural } from "./format.js";
import { filter } from "./filters.js";
import { changed, MAX_REQUESTS, model, registerPanel, until } from "./model.js";
import { drawAnswer } from "./overview.js";
import { visible } from "./route.js";
import { request } from "./live.js";

const STORE_KINDS = { memory: "memory of this process", file: "memory, saved to a file on shutdown", redis: "Redis" };
const LOADING = "Waiting for the gateway.";

/** Draws a list of names and values, unless the same list is drawn already. */
function drawFacts(id, rows) {
  const parent = byId(id), text = JSON.stringify(rows);
  if (parent.dataset.drawn === text) return;
  parent.dataset.drawn = text;
  parent.replaceChildren(facts(rows));
}

/** Returns the state of the store, and its tone. */
function storeState({ kind, lost, cold_start: coldStart }) {
  const name = STORE_KINDS[kind] ?? kind, more = coldStart ? `; ${coldStart}` : "";
  if (model.lost) return [`${name}; state unknown`, ""];
  if (lost) return [`${name}, lost ${formatSeconds(-until(lost))} ago${more}`, "bad"];
  return kind === "redis" ? [`${name}, connected${more}`, "good"] : [name + more, ""];
}

function drawStore() {
  const s = model.state;
  drawFacts("store", [
    ["Store", ...storeState(s.store)],
    ["Replicas", plural(s.store.replicas ?? 1, "replica")],
    ["Cache", `${plural(s.cache.keys, "response")}, ${bytes(s.cache.bytes)} of ${bytes(s.cache.max_bytes)}`],
    ["Memory", s.memory ? bytes(s.memory.bytes) + (s.memory.max_bytes ? ` of ${bytes(s.memory.max_bytes)} (GOMEMLIMIT)` : "") : "–"],
    ["Dialect", s.dialect],
    ["Limits", s.limits],
    ["Uptime", formatSeconds(-until(s.started))],
  ]);
}

/** The time before the end of a certificate, in seconds, from which the page warns. */
const CERTIFICATE_WARNING = 14 * 86400;

/** Returns the certificates, the one that ends first first. */
const byEnd = ({ certificates }) => (certificates ?? []).toSorted((a, b) => Date.parse(a.expires) - Date.parse(b.expires));

/** Describes the end of a certificate. */
const endText = (c) => (until(c.expires) <= 0 ? "has expired" : `ends in ${formatSeconds(until(c.expires))}`);

/** Draws the latency and the errors of the upstream, from the latest requests, and the certificates. */
function drawUpstream() {
  const s = model.state;
  const attempts = model.requests.slice(0, MAX_REQUESTS).flatMap((r) => (r.stages ?? []).filter((t) => t.name === "attempt"));
  const times = attempts.map((t) => t.elapsed_ns).sort((a, b) => a - b), failed = attempts.filter((t) => t.failed).length;
  const at = (part) => formatNanoseconds(times[Math.min(times.length - 1, Math.floor(part * times.length))]);
  const certificates = byEnd(s).slice(0, 5).map((c) => ["Certificate", `${endText(c)}: ${c.name.split("/").at(-1)}`, until(c.expires) < CERTIFICATE_WARNING ? "bad" : ""]);
  drawFacts("upstream-facts", [
    ["Upstream", s.upstream],
    ["Latency", times.length ? `median ${at(0.5)}, 95 % within ${at(0.95)}` : "no request yet"],
    ["Errors", times.length ? `${failed} of the latest ${plural(times.length, "attempt")}` : "–", failed ? "bad" : ""],
    ["Quarantined", s.refused?.length ? plural(s.refused.length, "credential") : "no credential", s.refused?.length ? "bad" : ""],
    ...(certificates.length ? certificates : [["Certificate", "none: plain HTTP"]]),
  ]);
}

let audit = null;
/** The configuration of an empty file. */
let defaults = null;

/** Reloads the audit trail and the configuration, which have no events. */
export async function refresh() {
  try {
    [audit, model.configuration, defaults] = await Promise.all([request("/api/v1/audit"), request("/api/v1/config"), defaults ?? request("/api/v1/config/defaults")]);
  } catch {
    return; // live.js shows the lost connection
  }
  changed("configuration");
}

function drawAudit() {
  const parent = byId("audit");
  if (!audit) return;
  if (!audit.length) {
    parent.replaceChildren(placeholder("No purge and no reload since the start."));
    return;
  }
  const rows = audit.map((c) => [date(c.time), label(c.operator), label(c.action, "strong"), label(c.target), label(c.outcome, c.outcome.startsWith("failed") ? "bad-text" : "")]);
  parent.replaceChildren(table([{ name: "Time" }, { name: "Operator" }, { name: "Action" }, { name: "Target" }, { name: "Outcome" }], rows, { class: "grid audit" }));
}

/** Returns the leaves of a configuration as pairs of a dotted key and a value. */
function flatten(value, path = []) {
  if (value !== null && typeof value === "object" && Object.keys(value).length) {
    return Object.entries(value).flatMap(([k, v]) => flatten(v, [...path, k]));
  }
  return [[path.join("."), value === null || value === "" ? "–" : typeof value === "object" ? (Array.isArray(value) ? "none" : "–") : String(value)]];
}

function drawConfiguration() {
  if (!model.configuration) return;
  const text = filter("q").trim().toLowerCase();
  const normal = new Map(flatten(defaults ?? {})), all = flatten(model.configuration), changes = all.filter(([k, v]) => (normal.get(k) ?? "–") !== v);
  const lines = (filter("keys") === "all" || text ? all : changes).filter((l) => l.some((s) => s.toLowerCase().includes(text)));
  setText(byId("config-note"), `${plural(changes.length, "key")} of ${all.length} changed`);
  const parent = byId("config");
  if (!lines.length) {
    parent.replaceChildren(placeholder(text ? "No key or value matches the filter." : "All settings have their defaults."));
    return;
  }
  parent.replaceChildren(facts(lines, "config"));
}

for (const id of ["store", "upstream-facts", "audit", "config"]) byId(id).replaceChildren(placeholder(LOADING));

/** Answers the question of the screen. */
function drawHealth() {
  const s = model.state;
  const quarantined = s.refused?.length ?? 0;
  const [ending] = byEnd(s);
  if (s.store.lost) drawAnswer("system-answer", `No. The store has not responded for ${formatSeconds(-until(s.store.lost))}.`, "bad");
  else if (ending && until(ending.expires) <= 0) drawAnswer("system-answer", "No. A certificate has expired, so clients refuse the gateway.", "bad");
  else if (quarantined) drawAnswer("system-answer", `Mostly. The upstream rejects ${plural(quarantined, "credential")}.`, "warn");
  else if (audit?.find((c) => c.action === "reload")?.outcome.startsWith("failed")) drawAnswer("system-answer", "Yes, but the last reload failed: the previous configuration stays in force.", "warn");
  else if (ending && until(ending.expires) < CERTIFICATE_WARNING) drawAnswer("system-answer", `Yes, but a certificate ${endText(ending)}.`, "warn");
  else drawAnswer("system-answer", s.store.kind === "redis" ? `Yes. ${plural(s.store.replicas, "replica")} share Redis.` : "Yes. This replica runs alone.", "good");
}

const shown = () => visible("system");
registerPanel(["state", "second"], () => {
  if (!model.state) return;
  drawStore();
  drawUpstream();
  drawHealth();
}, shown);
registerPanel(["configuration", "route"], () => {
  drawAudit();
  drawConfiguration();
}, shown);
refresh();
setInterval(refresh, 15000);
