// The two things that can be changed from here: what the cache holds, and the
// configuration, read anew.

import { byId, say } from "./dom.js";
import { plural } from "./format.js";
import { post } from "./live.js";
import { refresh } from "./system.js";

const form = /** @type {HTMLFormElement} */ (byId("purge-form"));
const what = /** @type {HTMLInputElement} */ (byId("purge-what"));
const result = byId("act-result");

/** Does something, and says what came of it. */
async function act(button, doing, done) {
  button.disabled = true;
  result.dataset.tone = "";
  say(result, "…");
  try {
    say(result, done(await doing()));
    result.dataset.tone = "good";
  } catch (error) {
    say(result, error.message);
    result.dataset.tone = "bad";
  }
  button.disabled = false;
  refresh();
}

form.addEventListener("change", () => {
  what.placeholder = form.by.value === "url" ? "/repos/acme/widgets" : "repo:acme/widgets";
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const hard = form.hard.checked;
  const done = (a) => `${plural(a.entries, "entry", "entries")} ${hard ? "dropped" : "will be validated before use"}.`;
  act(event.submitter ?? form.querySelector("[type=submit]"), () => post("/api/v1/cache/purge", { [form.by.value]: what.value.trim(), hard }), done);
});

const reload = /** @type {HTMLButtonElement} */ (byId("reload"));
reload.addEventListener("click", () => act(reload, () => post("/api/v1/reload"), () => "The configuration was read anew, and is in force."));
