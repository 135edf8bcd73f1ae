// The forms that change the gateway: purge the cache, reload the configuration.

import { byId, setText } from "./dom.js";
import { plural } from "./format.js";
import { post } from "./live.js";
import { refresh } from "./system.js";

const form = /** @type {HTMLFormElement} */ (byId("purge-form"));
const target = /** @type {HTMLInputElement} */ (byId("purge-target"));
const result = byId("control-result");

/** Sends a change and shows the result or the error. The button is disabled until the response arrives. */
async function submit(button, send, describe) {
  button.disabled = true;
  result.dataset.tone = "";
  setText(result, "…");
  try {
    setText(result, describe(await send()));
    result.dataset.tone = "good";
  } catch (error) {
    setText(result, error.message);
    result.dataset.tone = "bad";
  }
  button.disabled = false;
  refresh();
}

form.addEventListener("change", () => {
  target.placeholder = form.by.value === "url" ? "/repos/acme/widgets" : "repo:acme/widgets";
});

const confirmation = byId("purge-confirm"), question = byId("purge-question");
const ask = (text) => {
  setText(question, text);
  confirmation.hidden = !text;
};
form.addEventListener("input", () => ask(""));
byId("purge-cancel").addEventListener("click", () => ask(""));

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (event.submitter?.id !== "purge-yes") {
    setText(result, "");
    ask(`${form.hard.checked ? "Remove" : "Revalidate"} all stored responses of ${target.value.trim()}? ${form.hard.checked ? "The next requests spend quota." : "Unchanged responses cost no quota."}`);
    byId("purge-yes").focus();
    return;
  }
  ask("");
  const hard = form.hard.checked;
  const describe = (r) => `${plural(r.entries, "entry", "entries")} ${hard ? "removed" : "will be revalidated before use"}.`;
  submit(event.submitter ?? form.querySelector("[type=submit]"), () => post("/api/v1/cache/purge", { [form.by.value]: target.value.trim(), hard }), describe);
});

const reload = /** @type {HTMLButtonElement} */ (byId("reload"));
reload.addEventListener("click", () => submit(reload, () => post("/api/v1/reload"), () => "The configuration was reloaded."));
