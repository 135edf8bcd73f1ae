// The list of recent requests, with its filters. A row links to the explanation of its request.

import { byId, el, label, reconcile, setText, WindowedRows } from "./dom.js";
import { drawChips, drawEmpty, filter } from "./filters.js";
import { clock, count, formatNanoseconds, plural } from "./format.js";
import { MAX_REQUESTS, model, now, OUTCOMES, ownValue, registerPanel } from "./model.js";
import { drawAnswer } from "./overview.js";
import { linkTo, linkWith, route, setFilters, visible } from "./route.js";

const pause = byId("pause");

/** The requests at the time of the pause, or null while the list is live. */
let paused = null;

/** The time ranges in minutes. */
const RANGES = { "1m": 1, "10m": 10, "1h": 60 };

/** Returns the time range of the present address, in minutes. */
export const range = () => ownValue(RANGES, filter("range")) ?? 60;

/** Returns the operation of a request with the name of its GraphQL operation, or its route if the operation is unknown. */
export const operationOf = (r) => (r.graphql_operation ? `${r.operation} ${r.graphql_operation}` : r.operation && r.operation !== "unknown" ? r.operation : r.route);

/** Returns the name of the client of a request in the costs. */
export const clientOf = (r) => r.client || r.account || "";

/** Returns the label of the client of a request. */
export const clientLabel = (r) => (r.background ? "background" : r.client || r.account_label || "–");

/** The texts of a request that the search finds. */
const textsOf = (r) => [operationOf(r), r.route, r.path, clientLabel(r), r.tag, r.account_label, r.account, r.cache, r.method, String(r.status), r.id, r.error];

/** Returns the requests that pass all filters except the filter by outcome. */
function filterRequests() {
  const text = filter("q").trim().toLowerCase(), status = filter("status"), since = filter("range") ? now() - range() * 60000 : 0;
  const names = [["client", clientOf], ["operation", operationOf], ["account", (r) => r.account], ["tag", (r) => r.tag]].filter(([name]) => filter(name));
  return (paused ?? model.requests).filter((r) =>
    (!status || String(r.status) === status || (status.endsWith("xx") && String(r.status)[0] === status[0])) &&
    names.every(([name, of]) => of(r) === filter(name)) &&
    (!since || Date.parse(r.start) >= since) &&
    (!text || textsOf(r).some((s) => s?.toLowerCase().includes(text))));
}

export const createPill = (outcome) => el("span", { class: "pill", "data-outcome": outcome }, outcome);

/** The filters of the drawn rows. */
let filters = route.params;

function createRow(r) {
  const link = el("a", { class: "link cut", title: `${r.method} ${r.path || r.route}` }, `${r.method} ${operationOf(r)}`);
  const path = label(r.path || r.route, "note path"); // all rows have the same height
  const node = el("tr", { "data-id": r.id },
    el("td", { class: "time" }, clock(r.start)),
    el("td", {}, createPill(r.result)),
    el("td", { class: "num" }, el("span", { class: r.status >= 500 ? "bad-text" : "" }, r.status)),
    el("td", {}, el("span", { class: "two-lines" }, link, path)),
    el("td", {}, label(clientLabel(r), r.background ? "muted" : "")),
    el("td", { class: "num" }, formatNanoseconds(r.elapsed_ns)),
    el("td", { class: "num" }, r.attempts ? count(r.attempts) : "–"));
  let drawnFilters = null;
  node.update = () => {
    if (filters !== drawnFilters) link.setAttribute("href", linkTo("requests", (drawnFilters = filters), r.id));
  };
  node.addEventListener("click", (event) => {
    if (event.target !== link) link.click();
  });
  return node;
}

/** Creates the button that selects an outcome. A second click selects all outcomes. */
function createOutcome({ outcome }) {
  const number = el("b"), button = el("button", { type: "button", class: "outcome", "data-outcome": outcome }, el("i", { class: "swatch", "aria-hidden": "true" }), outcome, number);
  button.addEventListener("click", () => setFilters({ result: filter("result") === outcome ? "" : outcome }));
  button.update = (item) => {
    setText(number, count(item.count));
    button.setAttribute("aria-pressed", String(filter("result") === outcome));
    button.classList.toggle("zero", item.count === 0);
  };
  return button;
}

function answer(requests) {
  if (!model.requestsLoaded) return "Waiting for the gateway.";
  if (!requests.length) return "No request to explain.";
  const of = (result) => requests.filter((r) => r.result === result).length;
  const parts = [[of("refused"), "refused"], [of("limited"), "refused by the API"], [of("error"), "failed"], [of("waited"), "waited"], [of("miss"), of("miss") === 1 ? "was a miss" : "were misses"]].filter(([n]) => n);
  if (!parts.length) return "The cache answered every request without a wait.";
  return `Of ${plural(requests.length, "recent request")}, ${parts.map(([n, text]) => `${count(n)} ${text.startsWith("refused") ? `${n === 1 ? "was" : "were"} ${text}` : text}`).join(", ")}.`;
}

const list = new WindowedRows(byId("request-rows"), (r) => r.id, createRow);

function draw() {
  filters = route.params;
  const matching = filterRequests(), result = filter("result");
  const shown = result ? matching.filter((r) => r.result === result) : matching;
  list.draw(filter("order") === "slow" ? shown.toSorted((a, b) => b.elapsed_ns - a.elapsed_ns) : shown);
  reconcile(byId("outcomes"), OUTCOMES.map((outcome) => ({ outcome, count: matching.filter((r) => r.result === outcome).length })), (o) => o.outcome, createOutcome);
  drawChips("requests-chips", ["client", "operation", "account", "tag"]);
  drawAnswer("requests-answer", answer(route.params.size ? matching : matching.slice(0, MAX_REQUESTS))); // the older ones are no fair sample
  const none = !model.requestsLoaded ? "Waiting for the gateway." : model.requests.length ? "No request matches the filters." : "No requests yet. Send one; it appears here within a second:";
  drawEmpty("requests-empty", shown.length ? "" : none, model.requestsLoaded && !model.requests.length);
  const skipped = model.skipped ? `; ${plural(model.skipped, "request")} skipped because the rate was too high` : "";
  setText(byId("requests-count"), model.requests.length === 0 ? "" : `${paused ? "paused at " : ""}${count((paused ?? model.requests).length)} kept: the latest, and older refusals, errors and slow requests${skipped}`);
}

pause.addEventListener("click", () => {
  paused = paused ? null : [...model.requests];
  pause.setAttribute("aria-pressed", String(Boolean(paused)));
  setText(pause, paused ? "Resume" : "Pause");
  draw();
});

/** The buttons that select the time range of charts and lists. */
for (const parent of document.querySelectorAll(".range")) {
  for (const name of Object.keys(RANGES)) {
    const link = el("a", { class: "segment" }, name.replace("m", " min").replace("h", " hour"));
    parent.append(link);
    registerPanel(["route"], () => {
      link.setAttribute("href", linkWith({ range: name === "1h" ? "" : name }));
      if (RANGES[name] === range()) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    });
  }
}

registerPanel(["requests", "configuration", "route"], draw, () => visible("requests"));
