// What the gateway runs on and by: store, replicas, configuration, and who has changed
// what.

import { byId, el, empty, name, say, table } from "./dom.js";
import { bytes, date, plural, span } from "./format.js";
import { draws, model, until } from "./model.js";
import { ask } from "./live.js";

const KINDS = { memory: "memory of this process", file: "memory, kept in a file over a restart", redis: "Redis" };

/** Facts about the store, the replicas and the cache. */
function store() {
  const s = model.state;
  const place = byId("store");
  if (!s) {
    if (!place.firstChild) place.replaceChildren(empty("Waiting for the gateway."));
    return;
  }
  if (!place.querySelector("dl")) {
    place.replaceChildren(el("dl", { class: "facts" }, ...["Store", "State", "Replicas", "Cache", "API", "Dialect", "Up for"].flatMap((k) => [el("dt", {}, k), el("dd")])));
  }
  const lost = s.store.lost ? `lost ${span(-until(s.store.lost))} ago` : "answers";
  const values = [
    KINDS[s.store.kind] ?? s.store.kind, lost, s.store.kind === "redis" ? plural(s.store.replicas, "replica") : "this one alone",
    `${plural(s.cache.keys, "answer")}, ${bytes(s.cache.bytes)} of ${bytes(s.cache.most)}`, s.upstream, s.dialect, span(-until(s.started)),
  ];
  place.querySelectorAll("dd").forEach((dd, i) => say(dd, values[i]));
  place.querySelectorAll("dd")[1].dataset.tone = s.store.lost ? "bad" : "good";
}

let audit = null;
let configuration = null;

/** Asks anew for what no event tells. */
export async function refresh() {
  try {
    [audit, configuration] = await Promise.all([ask("/api/v1/audit"), ask("/api/v1/config")]);
  } catch {
    return; // the connection says of itself that it is lost
  }
  drawAudit();
  drawConfiguration();
}

function drawAudit() {
  const place = byId("audit");
  if (!audit.length) {
    place.replaceChildren(empty("Nobody has purged or reloaded anything since the start."));
    return;
  }
  const rows = audit.map((c) => [date(c.time), name(c.operator), name(c.action, "strong"), name(c.target), name(c.outcome, c.outcome.startsWith("failed") ? "bad-text" : "")]);
  place.replaceChildren(table([{ name: "When" }, { name: "Who" }, { name: "What" }, { name: "Target" }, { name: "Outcome" }], rows, { class: "grid audit" }));
}

/** The configuration as lines: a path of keys, and a value. */
function flat(value, path = []) {
  if (value !== null && typeof value === "object" && Object.keys(value).length) {
    return Object.entries(value).flatMap(([k, v]) => flat(v, [...path, k]));
  }
  return [[path.join("."), value === null || value === "" ? "–" : typeof value === "object" ? (Array.isArray(value) ? "none" : "–") : String(value)]];
}

function drawConfiguration() {
  if (!configuration) return;
  const text = byId("config-filters").text.value.trim().toLowerCase();
  const lines = flat(configuration).filter((l) => l.some((s) => s.toLowerCase().includes(text)));
  const place = byId("config");
  if (!lines.length) {
    place.replaceChildren(empty("No key and no value is like that."));
    return;
  }
  place.replaceChildren(el("dl", { class: "facts config" }, ...lines.flatMap(([k, v]) => [el("dt", {}, k), el("dd", { class: v === "–" || v === "none" ? "muted" : "" }, v)])));
}

byId("config-filters").addEventListener("submit", (event) => event.preventDefault());
byId("config-filters").addEventListener("input", drawConfiguration);
for (const id of ["audit", "config"]) byId(id).replaceChildren(empty("Waiting for the gateway."));
draws(["state", "second"], store);
refresh();
setInterval(refresh, 15000);
