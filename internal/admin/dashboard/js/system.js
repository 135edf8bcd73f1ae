// The panels about the gateway itself: store, replicas, cache, audit trail, configuration.

import { byId, el, label, placeholder, setText, table } from "./dom.js";
import { bytes, date, formatSeconds, plural } from "./format.js";
import { filter } from "./filters.js";
import { changed, model, registerPanel, until } from "./model.js";
import { drawAnswer } from "./overview.js";
import { visible } from "./route.js";
import { request } from "./live.js";

const STORE_KINDS = { memory: "memory of this process", file: "memory, saved to a file on shutdown", redis: "Redis" };
const LOADING = "Waiting for the gateway.";

function drawStore() {
  const s = model.state;
  const parent = byId("store");
  if (!s) {
    if (!parent.firstChild) parent.replaceChildren(placeholder(LOADING));
    return;
  }
  if (!parent.querySelector("dl")) {
    parent.replaceChildren(el("dl", { class: "facts" }, ...["Store", "State", "Replicas", "Cache", "Upstream", "Dialect", "Limits", "Uptime"].flatMap((k) => [el("dt", {}, k), el("dd")])));
  }
  const values = [
    STORE_KINDS[s.store.kind] ?? s.store.kind,
    (s.store.lost ? `lost ${formatSeconds(-until(s.store.lost))} ago` : "connected") + (s.store.cold_start ? "; " + s.store.cold_start : ""),
    s.store.kind === "redis" ? plural(s.store.replicas, "replica") : "1 replica",
    `${plural(s.cache.keys, "response")}, ${bytes(s.cache.bytes)} of ${bytes(s.cache.max_bytes)}`,
    s.upstream, s.dialect, s.limits, formatSeconds(-until(s.started)),
  ];
  parent.querySelectorAll("dd").forEach((dd, i) => setText(dd, values[i]));
  parent.querySelectorAll("dd")[1].dataset.tone = s.store.lost ? "bad" : "good";
}

let audit = null;

/** Reloads the audit trail and the configuration, which have no events. */
export async function refresh() {
  try {
    [audit, model.configuration] = await Promise.all([request("/api/v1/audit"), request("/api/v1/config")]);
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
  const lines = flatten(model.configuration).filter((l) => l.some((s) => s.toLowerCase().includes(text)));
  const parent = byId("config");
  if (!lines.length) {
    parent.replaceChildren(placeholder("No key or value matches the filter."));
    return;
  }
  parent.replaceChildren(el("dl", { class: "facts config" }, ...lines.flatMap(([k, v]) => [el("dt", {}, k), el("dd", { class: v === "–" || v === "none" ? "muted" : "" }, v)])));
}

for (const id of ["audit", "config"]) byId(id).replaceChildren(placeholder(LOADING));

/** Answers the question of the screen. */
function drawHealth() {
  const s = model.state;
  if (!s) return;
  const quarantined = s.refused?.length ?? 0;
  if (s.store.lost) drawAnswer("system-answer", `No. The store has not responded for ${formatSeconds(-until(s.store.lost))}.`, "bad");
  else if (quarantined) drawAnswer("system-answer", `Mostly. The upstream rejects ${plural(quarantined, "credential")}.`, "warn");
  else drawAnswer("system-answer", s.store.kind === "redis" ? `Yes. ${plural(s.store.replicas, "replica")} share Redis.` : "Yes. This replica runs alone.", "good");
}

const shown = () => visible("system");
registerPanel(["state", "second"], () => {
  drawStore();
  drawHealth();
}, shown);
registerPanel(["configuration", "route"], () => {
  drawAudit();
  drawConfiguration();
}, shown);
refresh();
setInterval(refresh, 15000);
