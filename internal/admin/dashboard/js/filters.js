// The filters in the address of the page, and the texts of empty lists.

import { byId, el } from "./dom.js";
import { labelOf, model } from "./model.js";
import { linkWith, route } from "./route.js";

/** Returns the value of a filter, or an empty text. */
export const filter = (name) => route.params.get(name) ?? "";

/** Draws a chip for each filter that is set. Following a chip removes its filter. */
export function drawChips(id, names) {
  const set = names.filter(filter), parent = byId(id);
  const key = set.map((name) => `${name}\n${filter(name)}`).join("\n") + location.hash;
  if (parent.dataset.key === key) return;
  parent.dataset.key = key;
  parent.hidden = set.length === 0;
  parent.replaceChildren(...set.map((name) => {
    const value = name === "account" ? labelOf(filter(name)) : filter(name);
    return el("a", { class: "filter-chip", href: linkWith({ [name]: "" }), title: filter(name) },
      el("span", { class: "visually-hidden" }, "Remove the filter "), el("span", { class: "filter-name" }, `${name} `), el("span", { class: "cut" }, value), el("span", { "aria-hidden": "true" }, "×"));
  }));
}

/** Returns the command that sends a first request to this gateway. */
function firstRequest() {
  const c = model.configuration ?? {};
  const [, host, port] = /^(.*):(\d+)$/.exec(c.listen ?? "") ?? [null, "", "8080"];
  const secure = c.tls?.domains?.length || c.tls?.certificates?.length;
  const name = c.tls?.domains?.[0] ?? (/^(|0\.0\.0\.0|\[::\])$/.test(host) ? location.hostname : host);
  const socket = /^unix:(.*)/.exec(c.listen ?? "");
  const target = socket ? `--unix-socket ${socket[1]} http://localhost` : `${secure ? "https" : "http"}://${name}:${port}`;
  return `curl -H "Authorization: Bearer $TOKEN" ${target}/user`;
}

/** Shows why a list is empty. With showCommand, the text also shows a command that sends a first request. */
export function drawEmpty(id, text, showCommand = false) {
  const parent = byId(id), command = showCommand ? firstRequest() : "";
  const key = text && `${text}\n${command}`;
  parent.hidden = !text;
  if (parent.dataset.key === key) return;
  parent.dataset.key = key;
  parent.replaceChildren(el("p", {}, text), command ? el("pre", { class: "command", tabindex: 0 }, el("code", {}, command)) : "");
}
