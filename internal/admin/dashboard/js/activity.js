// What holds requests up now: cool-downs, queues, statistics that are still computed.

import { byId, el, empty, keep, name, say, table } from "./dom.js";
import { clock, count, plural, span } from "./format.js";
import { draws, model, now, until } from "./model.js";

/** The most rows of each list. */
const MOST = 5;

/** Draws rows, or words where there are none; what is more than fits is counted. */
function list(place, items, keyOf, make, words) {
  if (!items.length) {
    if (place.dataset.words !== words) place.replaceChildren(empty(words));
    place.dataset.words = words;
    return;
  }
  if (!place.querySelector("ul")) {
    delete place.dataset.words;
    place.replaceChildren(el("ul", { class: "rows" }), el("p", { class: "more note" }));
  }
  keep(place.querySelector("ul"), items.slice(0, MOST), keyOf, make);
  const more = place.querySelector(".more");
  more.hidden = items.length <= MOST;
  say(more, `and ${count(items.length - MOST)} more`);
}

/** A row with a name, a word more, and a number that goes on. */
function row(tone) {
  const who = name("", "strong"), more = name("", "muted"), value = el("span", { class: "row-value" });
  const node = el("li", { class: "row", "data-tone": tone }, el("span", { class: "row-names" }, who, more), value);
  node.say = (a, b, c) => {
    say(who, a);
    who.title = a;
    say(more, b);
    more.title = b;
    say(value, c);
  };
  return node;
}

function cooldowns() {
  const cooling = [...model.accounts.values()]
    .filter((a) => a.blocked_until && Date.parse(a.blocked_until) > now())
    .sort((a, b) => Date.parse(a.blocked_until) - Date.parse(b.blocked_until));
  list(byId("cooldowns"), cooling, (a) => a.account, () => {
    const node = row("bad");
    node.update = (a) => node.say(a.account, `until ${clock(a.blocked_until)}, then one request tries`, span(until(a.blocked_until)));
    return node;
  }, model.heard ? "No account is in a cool-down: the API has told nobody to pause." : "Waiting for the gateway.");
}

function queues() {
  const waiting = model.state?.waiting ?? {};
  const busy = [...model.accounts.values()]
    .map((a) => ({ ...a, waiting: waiting[a.account] ?? 0 }))
    .filter((a) => a.in_flight || a.waiting)
    .sort((a, b) => b.waiting - a.waiting || b.in_flight - a.in_flight);
  const known = new Set(busy.map((a) => a.account));
  for (const [account, n] of Object.entries(waiting)) {
    if (!known.has(account)) busy.unshift({ account, waiting: n, in_flight: 0, concurrent: 0 });
  }
  list(byId("queues"), busy, (a) => a.account, () => {
    const node = row("");
    node.update = (a) => node.say(a.account, a.waiting ? `${count(a.waiting)} waiting for a permit` : "nobody waits", `${count(a.in_flight)} of ${count(a.concurrent)}`);
    return node;
  }, model.heard ? "Nobody waits, and nothing is in flight at this moment." : "Waiting for the gateway.");
}

function polls() {
  list(byId("polls"), model.state?.polling ?? [], (p) => `${p.path} ${p.account}`, () => {
    const node = row("");
    node.update = (p) => {
      const next = until(p.next);
      node.say(p.path, `${plural(p.waiting, "client")} ${p.waiting === 1 ? "waits" : "wait"}, for ${span(-until(p.since))}; asked ${plural(p.asked, "time")}`, next > 0 ? span(next) : "asking");
    };
    return node;
  }, model.heard ? "Nothing is polled: no statistics are being computed for anybody." : "Waiting for the gateway.");
}

draws(["accounts", "state", "second"], () => {
  cooldowns();
  queues();
  polls();
});

draws(["state"], () => {
  const refused = model.state?.refused ?? [];
  const place = byId("refused");
  if (!refused.length) {
    place.replaceChildren(empty(model.heard ? "The API accepts every credential that Weir holds, as far as they were used." : "Waiting for the gateway."));
    return;
  }
  place.replaceChildren(table([{ name: "Credential" }, { name: "Rests until", num: true }, { name: "Refused", num: true }],
    refused.map((c) => [name(c.credential, "strong"), clock(c.until), plural(c.times, "time")])));
});
