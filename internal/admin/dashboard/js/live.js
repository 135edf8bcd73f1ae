// The connection to the gateway: what it tells as it happens, and whether it does.

import { byId, say } from "./dom.js";
import { changed, events, restart } from "./model.js";

/** How many requests a second are wanted at most: more nobody reads. */
const MOST = 25;
/** The gateway tells its state every second; so long it may be silent, in ms. */
const SILENCE = 8000;
const RETRY = 2000;

/** Asks once, and throws what is wrong in the gateway's own words. */
export async function ask(path, options = {}) {
  const answer = await fetch(path, { ...options, signal: AbortSignal.timeout(15000) });
  if (answer.status === 401) {
    location.assign("/login");
    throw new Error("the session has ended");
  }
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}

/** Changes something. */
export const post = (path, body = {}) => ask(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

let source = null;
let heard = 0;
let again = 0;
/** How often in a row the stream has not opened although the gateway answers. */
let refused = 0;

function show(state, words) {
  const live = byId("live");
  if (live.dataset.state !== state) live.dataset.state = state;
  say(byId("live-text"), words);
}

/** Begins to listen, and goes on for good. */
export function listen() {
  source?.close();
  heard = Date.now();
  source = new EventSource(`/api/v1/events?most=${MOST}`);
  source.addEventListener("open", resync);
  source.addEventListener("error", lost);
  for (const [name, take] of Object.entries(events)) {
    source.addEventListener(name, (event) => {
      heard = Date.now();
      take(JSON.parse(event.data));
    });
  }
}

/** Asks for what was missed. */
async function resync() {
  refused = 0;
  await catchUp();
}

async function catchUp() {
  heard = Date.now();
  const asked = performance.now();
  try {
    const [requests, series] = await Promise.all([ask("/api/v1/requests"), ask("/api/v1/series")]);
    restart(requests, series, asked);
    if (!refused) show("live", "live");
    changed("accounts");
  } catch {
    lost();
  }
}

/** Says so, and comes back; a session that has ended leads to the login. */
function lost() {
  show("lost", "reconnecting");
  again ||= setTimeout(comeBack, RETRY);
}

async function comeBack() {
  again = 0;
  if (source.readyState === EventSource.OPEN && byId("live").dataset.state === "live" && Date.now() - heard < SILENCE) return;
  try {
    await ask("/api/v1/state");
    if (source.readyState === EventSource.CLOSED && ++refused > 1) {
      show("lost", "not live: others watch already, or a proxy cuts the stream");
      await catchUp();
    }
    listen();
  } catch {
    lost();
  }
}

setInterval(() => {
  if (source && Date.now() - heard > SILENCE) lost();
}, 2000);
