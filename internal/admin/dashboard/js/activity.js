// The panels about delays: cool-downs, queues, polled statistics, quarantined credentials.

import { byId, el, label, placeholder, reconcile, setText, table } from "./dom.js";
import { clock, count, formatSeconds, plural } from "./format.js";
import { labelOf, model, now, registerPanel, until, ownValue } from "./model.js";
import { visible } from "./route.js";

/** The maximum number of rows in a list. */
const MAX_ROWS = 5;
const LOADING = "Waiting for the gateway.";

/** Returns the text of an empty list of accounts. */
const noAccounts = (text) => (!model.ready ? LOADING : model.error ? "Unknown: the accounts cannot be listed." : text);

/** Draws a list of rows, or a text for an empty list. The number of rows beyond the maximum is shown below the list. */
function drawList(parent, items, keyOf, create, emptyText) {
  if (!items.length) {
    if (parent.dataset.empty !== emptyText) parent.replaceChildren(placeholder(emptyText));
    parent.dataset.empty = emptyText;
    return;
  }
  if (!parent.querySelector("ul")) {
    delete parent.dataset.empty;
    parent.replaceChildren(el("ul", { class: "rows" }), el("p", { class: "more note" }));
  }
  reconcile(parent.querySelector("ul"), items.slice(0, MAX_ROWS), keyOf, create);
  const more = parent.querySelector(".more");
  more.hidden = items.length <= MAX_ROWS;
  setText(more, `and ${count(items.length - MAX_ROWS)} more`);
}

/** Creates a row that shows a title, a detail and a value. The function fields returns the three texts of an item. */
function createRow(tone, fields) {
  const title = label("", "strong"), detail = label("", "muted"), value = el("span", { class: "row-value" });
  const node = el("li", { class: "row", "data-tone": tone }, el("span", { class: "row-names" }, title, detail), value);
  node.update = (item) => {
    const [titleText, detailText, valueText] = fields(item);
    setText(title, titleText);
    title.title = titleText;
    setText(detail, detailText);
    detail.title = detailText;
    setText(value, valueText);
  };
  return node;
}

function drawCoolDowns() {
  const blocked = [...model.accounts.values()]
    .filter((a) => a.closed_since || (a.blocked_until && Date.parse(a.blocked_until) > now()))
    .sort((a, b) => Date.parse(a.closed_since ?? a.blocked_until) - Date.parse(b.closed_since ?? b.blocked_until));
  const fields = (a) =>
    a.closed_since
      ? [a.label, `closed since ${clock(a.closed_since)}, because probes failed; weir account open ${a.account}`, "closed"]
      : [a.label, `until ${clock(a.blocked_until)}, then one probe request`, formatSeconds(until(a.blocked_until))];
  const create = () => createRow("bad", fields);
  drawList(byId("cooldowns"), blocked, (a) => a.account, create, noAccounts("No account is in a cool-down."));
}

function drawQueues() {
  const waiting = model.state?.waiting ?? {};
  const busy = [...model.accounts.values()]
    .map((a) => ({ ...a, waiting: ownValue(waiting, a.account) ?? 0 }))
    .filter((a) => a.in_flight || a.waiting)
    .sort((a, b) => b.waiting - a.waiting || b.in_flight - a.in_flight);
  const listed = new Set(busy.map((a) => a.account));
  for (const [account, n] of Object.entries(waiting)) {
    if (!listed.has(account)) busy.unshift({ account, label: labelOf(account), waiting: n, in_flight: 0, concurrent: 0 });
  }
  const create = () => createRow("", (a) => [a.label, `${count(a.in_flight)} of ${count(a.concurrent)} in flight`, a.waiting ? `${count(a.waiting)} waiting` : ""]);
  drawList(byId("queues"), busy, (a) => a.account, create, noAccounts("No request is in flight or waiting."));
}

function drawPolls() {
  const create = () => createRow("", (p) => {
    const next = until(p.next);
    const detail = `${plural(p.waiting, "client")} waiting for ${formatSeconds(-until(p.since))}; polled ${plural(p.polls, "time")}`;
    return [p.path, detail, next > 0 ? `next in ${formatSeconds(next)}` : "polling"];
  });
  drawList(byId("polls"), model.state?.polling ?? [], (p) => `${p.path} ${p.account}`, create, model.ready ? "No statistics are being polled." : LOADING);
}

registerPanel(["accounts", "state", "second"], () => {
  drawCoolDowns();
  drawQueues();
}, () => visible("budgets"));

registerPanel(["state", "second"], drawPolls, () => visible("requests"));

registerPanel(["state"], () => {
  const quarantined = model.state?.refused ?? [];
  const parent = byId("refused");
  if (!quarantined.length) {
    parent.replaceChildren();
    return;
  }
  parent.replaceChildren(table([{ name: "Name" }, { name: "Retry at", num: true }, { name: "Rejected", num: true }],
    quarantined.map((c) => [label(c.credential, "strong"), clock(c.until), plural(c.times, "time")])));
}, () => visible("system"));
