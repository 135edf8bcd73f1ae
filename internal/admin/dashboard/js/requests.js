// The last requests: a list with filters and, of the one that is chosen, why it got what
// it got, and where its time went.

import { byId, el, keep, name, say } from "./dom.js";
import { bytes, clock, count, date, plural, took } from "./format.js";
import { draws, model } from "./model.js";

const MOST = 100;
const form = /** @type {HTMLFormElement} */ (byId("requests-filters"));
const pause = byId("pause");
const drawer = /** @type {HTMLDialogElement} */ (byId("drawer"));

/** What is shown while it is paused. */
let held = null;

/** What a request asked for: an operation of the documents, or the shape of its path. */
const asked = (r) => (r.operation && r.operation !== "unknown" ? r.operation : r.route);
const who = (r) => (r.background ? "background" : r.client || r.account || "–");

function found() {
  const text = form.text.value.trim().toLowerCase();
  const result = form.outcome.value;
  return (held ?? model.requests)
    .filter((r) => !result || r.result === result)
    .filter((r) => !text || [r.operation, r.route, r.client, r.account, r.cache, r.method, String(r.status), r.id, r.error].some((s) => s?.toLowerCase().includes(text)));
}

/** The mark of an outcome. */
export const pill = (outcome) => el("span", { class: "pill", "data-outcome": outcome }, outcome);

function row(r) {
  const choose = el("button", { class: "link cut", type: "button", "aria-haspopup": "dialog" }, `${r.method} ${asked(r)}`);
  choose.title = `${r.method} ${r.route}`;
  const node = el("tr", { "data-id": r.id },
    el("td", { class: "time", "data-label": "Time" }, clock(r.start)),
    el("td", { "data-label": "Outcome" }, pill(r.result)),
    el("td", { class: "num", "data-label": "Status" }, el("span", { class: r.status >= 500 ? "bad-text" : "" }, r.status)),
    el("td", { class: "operation", "data-label": "Operation" }, choose),
    el("td", { "data-label": "Client" }, name(who(r), r.background ? "muted" : "")),
    el("td", { class: "num", "data-label": "Took" }, took(r.elapsed_ns)),
    el("td", { class: "num", "data-label": "Sent" }, r.attempts ? count(r.attempts) : "–"));
  node.addEventListener("click", () => open(r));
  return node;
}

function draw() {
  const list = found();
  keep(byId("request-rows"), list.slice(0, MOST), (r) => r.id, row);
  const none = byId("requests-empty");
  none.hidden = list.length > 0;
  document.querySelector(".requests").hidden = list.length === 0;
  say(none, model.requests.length ? "None of the last requests is like that: change the filter." : !model.asked ? "They are being asked for." : "No request has come yet. Send one to the gateway, and it appears here within a second.");
  const skipped = model.skipped ? `; ${plural(model.skipped, "request")} came faster than the page is told` : "";
  say(byId("requests-count"), model.requests.length === 0 ? "" : `${held ? "paused at " : ""}the last ${count((held ?? model.requests).length)}${skipped}`);
}

/** The parts of a request that took time, as bars on one scale. */
function waterfall(r) {
  const stages = r.stages ?? [];
  if (!stages.length) {
    const words = r.attempts ? "No stages were recorded for this request." : r.result === "refused" ? "No stages were recorded: Weir refused it at once." : "No stages were recorded: it came from the cache.";
    return el("p", { class: "empty" }, words);
  }
  const all = Math.max(r.elapsed_ns, ...stages.map((s) => s.start_ns + s.elapsed_ns), 1);
  const names = { queue: "waiting for a permit", coalesce: "waiting for a coalesced call", attempt: "request to the API", settle: "recording in the ledger", poll: "pause between polls", retry: "pause before the retry" };
  return el("ol", { class: "waterfall" }, ...stages.map((s) => {
    const bar = el("span", { class: "fall-bar", "data-stage": s.failed ? "failed" : s.name });
    bar.style.left = `${(100 * s.start_ns) / all}%`;
    bar.style.width = `${Math.max(0.6, (100 * s.elapsed_ns) / all)}%`;
    return el("li", { class: "fall" },
      el("span", { class: "fall-name" }, names[s.name] ?? s.name, s.detail ? el("span", { class: "muted" }, ` ${s.detail}`) : null),
      el("span", { class: "fall-time num" }, took(s.elapsed_ns)),
      el("span", { class: "fall-track", "aria-hidden": "true" }, bar));
  }), el("li", { class: "fall-scale" }, el("span", {}, "0"), el("span", {}, took(all))));
}

function facts(r) {
  const rows = [
    ["Came", date(r.start)],
    ["Route", `${r.method} ${r.route}`],
    ["Operation", r.operation || "–"],
    ["Client", r.client || "–"],
    ["Account", r.account || "–"],
    ["Counts against", r.resource || "–"],
    ["Status", String(r.status)],
    ["Answer", bytes(r.bytes)],
    ["Took", took(r.elapsed_ns)],
    ["Waited", took(r.waited_ns)],
    ["Sent to the API", plural(r.attempts, "time")],
    ["Spent", plural(r.spent ?? 0, "request of the quota", "requests of the quota")],
    ["Cache-Status", r.cache || "–"],
    ["Request", r.id],
  ];
  if (r.trace_id) rows.push(["Trace", r.trace_id]);
  if (r.error) rows.push(["Error", r.error]);
  return el("dl", { class: "facts" }, ...rows.flatMap(([k, v]) => [el("dt", {}, k), el("dd", {}, v)]));
}

/** Opens the request: why it got what it got, and where its time went. */
function open(r) {
  byId("drawer-title").textContent = `${r.method} ${asked(r)}`;
  byId("drawer-body").replaceChildren(
    el("p", { class: "drawer-line" }, pill(r.result), el("span", {}, `${r.status}, ${took(r.elapsed_ns)}, ${who(r)}`)),
    el("h3", {}, "Why"),
    el("p", { class: "why", id: "why" }, r.why),
    el("h3", {}, "Where the time went"),
    waterfall(r),
    el("h3", {}, "The record"),
    facts(r));
  byId("drawer-body").scrollTop = 0;
  if (!drawer.open) drawer.showModal();
}

byId("drawer-close").addEventListener("click", () => drawer.close());
drawer.addEventListener("click", (event) => {
  if (event.target === drawer) drawer.close(); // beside it
});

pause.addEventListener("click", () => {
  held = held ? null : [...model.requests];
  pause.setAttribute("aria-pressed", String(Boolean(held)));
  say(pause, held ? "Go on" : "Pause");
  draw();
});
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", draw);
draws(["requests"], draw);
