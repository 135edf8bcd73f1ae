// The page of one request: the reason for its response, the duration of each stage, and its record.

import { byId, el, facts, setText } from "./dom.js";
import { amount, bytes, count, date, formatNanoseconds, formatSeconds, plural } from "./format.js";
import { model, registerPanel, until } from "./model.js";
import { clientLabel, clientOf, createPill, operationOf } from "./requests.js";
import { remainingShare } from "./risk.js";
import { linkTo, route, visible } from "./route.js";

/** The shown request. It stays on the page after the list has dropped the request. @type {import("./model.js").Request|undefined} */
let shown;
let drawnText = "";

const STAGES = { queue: "wait for a permit", coalesce: "wait for an identical request", attempt: "request to the upstream", settle: "report to the ledger", poll: "pause between polls", retry: "pause before a retry" };

/** Draws the stages of a request as bars on a common time scale. */
function waterfall(r) {
  const stages = r.stages ?? [];
  if (!stages.length) {
    const reason = r.attempts ? "." : r.result === "refused" ? ": Weir refused the request immediately." : ": the response came from the cache.";
    return el("p", { class: "muted" }, `No stages were recorded${reason}`);
  }
  const total = Math.max(r.elapsed_ns, ...stages.map((s) => s.start_ns + s.elapsed_ns), 1);
  return el("div", {},
    el("div", { class: "fall fall-scale", "aria-hidden": "true" }, el("span"),
      el("span", { class: "fall-quarters" }, ...[0, 0.25, 0.5, 0.75].map((part) => el("span", {}, formatNanoseconds(total * part)))),
      el("span", { class: "fall-time" }, formatNanoseconds(total))),
    el("ol", {}, ...stages.map((s) => {
      const bar = el("span", { class: "fall-bar", "data-stage": s.failed ? "failed" : s.name });
      bar.style.left = `${Math.min(99.4, (100 * s.start_ns) / total)}%`;
      bar.style.width = `${Math.max(0.6, (100 * s.elapsed_ns) / total)}%`;
      return el("li", { class: "fall" },
        el("span", { class: "fall-name" }, STAGES[s.name] ?? s.name, s.detail ? el("span", { class: "muted" }, ` ${s.detail}`) : null, s.failed ? el("span", { class: "bad-text" }, " failed") : null),
        el("span", { class: "fall-track", "aria-hidden": "true" }, bar),
        el("span", { class: "fall-time num" }, formatNanoseconds(s.elapsed_ns)),
        s.shared ? el("span", { class: "fall-more muted" }, sharedText(s.shared)) : null);
    })));
}

/** Describes the use of a budget that several clients share. */
const sharedText = (s) => `${s.budget}, limit ${count(s.limit)}: ${(s.clients ?? []).map((c) => `${c.client} used ${count(c.used)}`).join(", ")}`;

function recordList(r) {
  const link = (text, screen, filters) => el("a", { href: linkTo(screen, filters) }, text);
  const rows = [
    ["Received", date(r.start)],
    ["Path", r.path || "–"],
    ["Route", `${r.method} ${r.route}`],
    ["Operation", link(operationOf(r), "requests", { operation: operationOf(r) })],
    ["Client", clientOf(r) ? link(clientLabel(r), "requests", { client: clientOf(r) }) : "–"],
    ["Account", r.account ? link(r.account_label, "budgets", { account: r.account }) : "–"],
    ["Resource", r.resource || "–"],
    ["Response size", bytes(r.bytes)],
    ["Queued", formatNanoseconds(r.waited_ns)],
    ["Forwarded", plural(r.attempts, "time")],
    ["Quota spent", plural(r.spent ?? 0, r.resource === "graphql" ? "point" : "request")],
    ["Cache-Status", r.cache || "–"],
    ["Request ID", r.id],
  ];
  if (r.tag) rows.splice(4, 0, ["Tag", link(r.tag, "requests", { tag: r.tag })]);
  if (r.limit_answer) rows.push(["Limit answer", r.limit_answer]);
  if (r.trace_id) rows.push(["Trace", r.trace_id]);
  if (r.error) rows.push(["Error", r.error]);
  return facts(rows, "wide");
}

/** Describes the tightest budgets of the account of a refused request, and the clients that spent most of it. */
function use(r) {
  const account = model.accounts.get(r.account);
  const budgets = (account?.budgets ?? []).filter((b) => !b.client && (b.resource === r.resource || /^(points|cpu|content|concurrency)/.test(b.resource)) && (b.used || b.held))
    .sort((a, b) => remainingShare(a) - remainingShare(b)).slice(0, 4);
  const users = model.costs.accounts.filter((c) => c.account === r.account && c.spent).sort((a, b) => b.spent - a.spent).slice(0, 5);
  const coolDown = account?.blocked_until ? until(account.blocked_until) : 0;
  const rows = [
    ...(coolDown > 0 ? [["cool-down", `nothing is sent for ${formatSeconds(coolDown)}, then one probe request`, "bad"]] : []),
    ...budgets.map((b) => [b.resource, `${amount(b.resource, b.remaining)} of ${amount(b.resource, b.limit)} left${until(b.reset) > 0 ? `, resets in ${formatSeconds(until(b.reset))}` : ""}`]),
    ...users.map((c) => [`spent by ${c.client_label}`, `${count(c.spent)} in the last hour`]),
  ];
  return rows.length ? facts(rows) : el("p", { class: "muted" }, "The account has used nothing since.");
}

const section = (title, id, ...content) => el("section", { class: "panel", "aria-labelledby": id }, el("div", { class: "panel-head" }, el("h2", { id }, title)), el("div", { class: "panel-body" }, ...content));

function draw() {
  byId("request-back").setAttribute("href", linkTo("requests", route.params));
  if (shown?.id !== route.id) shown = undefined;
  shown ??= model.requests.find((r) => r.id === route.id);
  const text = shown ? JSON.stringify(shown) : `${route.id}/${model.requestsLoaded}`;
  if (text === drawnText) return;
  drawnText = text;
  if (!shown) {
    setText(byId("request-title"), "Request");
    byId("request-body").replaceChildren(el("p", { class: "empty panel" }, model.requestsLoaded ? `Request ${route.id} is not among the ${count(model.requests.length)} that this replica keeps. The access log and the traces have older requests.` : "Waiting for the gateway."));
    return;
  }
  const r = shown;
  setText(byId("request-title"), `${r.method} ${operationOf(r)}`);
  byId("request-body").replaceChildren(
    el("p", { class: "request-line" }, createPill(r.result), el("span", {}, `status ${r.status}`), el("span", {}, formatNanoseconds(r.elapsed_ns)), el("span", {}, clientLabel(r))),
    el("p", { class: "why", id: "why" }, r.why),
    ["refused", "limited"].includes(r.result) && r.account ? section("Budget and its users now", "use-title", use(r)) : "",
    section("Time per stage", "stages-title", waterfall(r)),
    section("Record", "record-title", recordList(r)));
}

registerPanel(["requests", "route"], draw, () => visible("request"));
