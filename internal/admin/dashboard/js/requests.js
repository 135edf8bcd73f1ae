// The list of recent requests. A click on a request opens an explanation: the reason for the response, and the duration
// of each stage.

import { byId, el, label, reconcile, setText } from "./dom.js";
import { bytes, clock, count, date, formatNanoseconds, plural } from "./format.js";
import { model, registerPanel } from "./model.js";

/** The maximum of rows. */
const MAX_ROWS = 100;
const form = /** @type {HTMLFormElement} */ (byId("requests-filters"));
const pause = byId("pause");
const drawer = /** @type {HTMLDialogElement} */ (byId("drawer"));

/** The requests at the time of the pause, or null while the list is live. */
let paused = null;

/** Returns the operation of a request with the name of its GraphQL operation, or its route if the operation is unknown. */
const operationOf = (r) => (r.graphql_operation ? `${r.operation} ${r.graphql_operation}` : r.operation && r.operation !== "unknown" ? r.operation : r.route);
const clientOf = (r) => (r.background ? "background" : r.client || r.account || "–");

function filterRequests() {
  const text = form.text.value.trim().toLowerCase();
  const result = form.outcome.value;
  return (paused ?? model.requests)
    .filter((r) => !result || r.result === result)
    .filter((r) => !text || [r.operation, r.graphql_operation, r.route, r.client, r.tag, r.account, r.cache, r.method, String(r.status), r.id, r.error].some((s) => s?.toLowerCase().includes(text)));
}

const createPill = (outcome) => el("span", { class: "pill", "data-outcome": outcome }, outcome);

function createRow(r) {
  const link = el("button", { class: "link cut", type: "button", "aria-haspopup": "dialog" }, `${r.method} ${operationOf(r)}`);
  link.title = `${r.method} ${r.route}`;
  const node = el("tr", { "data-id": r.id },
    el("td", { class: "time", "data-label": "Time" }, clock(r.start)),
    el("td", { "data-label": "Outcome" }, createPill(r.result)),
    el("td", { class: "num", "data-label": "Status" }, el("span", { class: r.status >= 500 ? "bad-text" : "" }, r.status)),
    el("td", { class: "operation", "data-label": "Operation" }, link),
    el("td", { "data-label": "Client" }, label(clientOf(r), r.background ? "muted" : "")),
    el("td", { class: "num", "data-label": "Duration" }, formatNanoseconds(r.elapsed_ns)),
    el("td", { class: "num", "data-label": "Forwarded" }, r.attempts ? count(r.attempts) : "–"));
  node.addEventListener("click", () => openDrawer(r));
  return node;
}

function draw() {
  const list = filterRequests();
  reconcile(byId("request-rows"), list.slice(0, MAX_ROWS), (r) => r.id, createRow);
  const empty = byId("requests-empty");
  empty.hidden = list.length > 0;
  document.querySelector(".requests").hidden = list.length === 0;
  const noRequests = model.requestsLoaded ? "No requests yet. Send one to the gateway; it appears here within a second." : "Waiting for the gateway.";
  setText(empty, model.requests.length ? "No request matches the filter." : noRequests);
  const skipped = model.skipped ? `; ${plural(model.skipped, "request")} skipped because the rate was too high` : "";
  setText(byId("requests-count"), model.requests.length === 0 ? "" : `${paused ? "paused at " : ""}the last ${count((paused ?? model.requests).length)}${skipped}`);
}

const STAGES = { queue: "wait for a permit", coalesce: "wait for an identical request", attempt: "request to the upstream", settle: "report to the ledger", poll: "pause between polls", retry: "pause before a retry" };

/** Draws the stages of a request as bars on a common time scale. */
function waterfall(r) {
  const stages = r.stages ?? [];
  if (!stages.length) {
    const reason = r.attempts ? "." : r.result === "refused" ? ": Weir refused the request immediately." : ": the response came from the cache.";
    return el("p", { class: "empty" }, `No stages were recorded${reason}`);
  }
  const total = Math.max(r.elapsed_ns, ...stages.map((s) => s.start_ns + s.elapsed_ns), 1);
  return el("ol", { class: "waterfall" }, ...stages.map((s) => {
    const bar = el("span", { class: "fall-bar", "data-stage": s.failed ? "failed" : s.name });
    bar.style.left = `${(100 * s.start_ns) / total}%`;
    bar.style.width = `${Math.max(0.6, (100 * s.elapsed_ns) / total)}%`;
    return el("li", { class: "fall" },
      el("span", { class: "fall-name" }, STAGES[s.name] ?? s.name, s.detail ? el("span", { class: "muted" }, ` ${s.detail}`) : null),
      el("span", { class: "fall-time num" }, formatNanoseconds(s.elapsed_ns)),
      el("span", { class: "fall-track", "aria-hidden": "true" }, bar));
  }), el("li", { class: "fall-scale" }, el("span", {}, "0"), el("span", {}, formatNanoseconds(total))));
}

function recordList(r) {
  const rows = [
    ["Received", date(r.start)],
    ["Route", `${r.method} ${r.route}`],
    ["Operation", r.operation || "–"],
    ["Client", r.client || "–"],
    ["Account", r.account || "–"],
    ["Resource", r.resource || "–"],
    ["Status", String(r.status)],
    ["Response size", bytes(r.bytes)],
    ["Duration", formatNanoseconds(r.elapsed_ns)],
    ["Queued", formatNanoseconds(r.waited_ns)],
    ["Forwarded", plural(r.attempts, "time")],
    ["Quota spent", plural(r.spent ?? 0, r.resource === "graphql" ? "point" : "request")],
    ["Cache-Status", r.cache || "–"],
    ["Request ID", r.id],
  ];
  if (r.graphql_operation) rows.push(["GraphQL operation", r.graphql_operation]);
  if (r.tag) rows.push(["Tag", r.tag]);
  if (r.trace_id) rows.push(["Trace", r.trace_id]);
  if (r.error) rows.push(["Error", r.error]);
  return el("dl", { class: "facts" }, ...rows.flatMap(([k, v]) => [el("dt", {}, k), el("dd", {}, v)]));
}

/** Opens the explanation of a request. */
function openDrawer(r) {
  byId("drawer-title").textContent = `${r.method} ${operationOf(r)}`;
  byId("drawer-body").replaceChildren(
    el("p", { class: "drawer-line" }, createPill(r.result), el("span", {}, `${r.status}, ${formatNanoseconds(r.elapsed_ns)}, ${clientOf(r)}`)),
    el("h3", {}, "Why"),
    el("p", { class: "why", id: "why" }, r.why),
    el("h3", {}, "Time per stage"),
    waterfall(r),
    el("h3", {}, "Record"),
    recordList(r));
  byId("drawer-body").scrollTop = 0;
  if (!drawer.open) drawer.showModal();
}

byId("drawer-close").addEventListener("click", () => drawer.close());
drawer.addEventListener("click", (event) => {
  if (event.target === drawer) drawer.close(); // a click on the backdrop
});

pause.addEventListener("click", () => {
  paused = paused ? null : [...model.requests];
  pause.setAttribute("aria-pressed", String(Boolean(paused)));
  setText(pause, paused ? "Resume" : "Pause");
  draw();
});
form.addEventListener("submit", (event) => event.preventDefault());
form.addEventListener("input", draw);
registerPanel(["requests"], draw);
