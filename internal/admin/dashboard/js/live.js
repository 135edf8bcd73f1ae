// The connection to the gateway: single requests, and the stream of server-sent events.

import { byId, setText } from "./dom.js";
import { changed, eventHandlers, model, resetTo, setLost } from "./model.js";

/** The maximum of request events per second. */
const MAX_RATE = 25;
/** The gateway sends its state every second. After this silence, in ms, the connection counts as lost. */
const MAX_SILENCE = 8000;
const RETRY_DELAY = 2000;

/** Sends a request and returns the JSON of the response. Throws an error with the gateway's message. */
export async function request(path, options = {}) {
  const response = await fetch(path, { ...options, signal: AbortSignal.timeout(15000) });
  if (response.status === 401) {
    location.assign("/login");
    throw new Error("the session has ended");
  }
  if (!response.ok) throw new Error((await response.text()).trim());
  return response.json();
}

/** Sends a change. */
export const post = (path, body = {}) => request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

let source = null;
let lastEvent = 0;
/** The time of the last data of the gateway. */
let lastData = Date.now();
let reconnectTimer = 0;
/** Counts consecutive failures to open the stream although the gateway responds. */
let refusals = 0;

function showConnection(state, text) {
  const live = byId("live");
  if (live.dataset.state !== state) live.dataset.state = state;
  setText(byId("live-text"), text);
}

/** Opens the event stream. After a loss of the connection, the page reconnects until it is closed. */
export function connect() {
  source?.close();
  lastEvent = Date.now();
  source = new EventSource(`/api/v1/events?rate=${MAX_RATE}`);
  source.addEventListener("open", () => {
    refusals = 0;
    resync();
  });
  source.addEventListener("error", connectionLost);
  for (const [name, handle] of Object.entries(eventHandlers)) {
    source.addEventListener(name, (event) => {
      lastEvent = lastData = Date.now();
      handle(JSON.parse(event.data));
    });
  }
}

/** Loads the data that the events since the last connection would have delivered. */
async function resync() {
  lastEvent = Date.now();
  const sent = performance.now();
  try {
    const [requests, series] = await Promise.all([request("/api/v1/requests"), request("/api/v1/series")]);
    resetTo(requests, series, sent);
    setLost(0);
    lastData = Date.now();
    if (!refusals) showConnection("live", "live");
    changed("accounts");
  } catch {
    connectionLost();
  }
}

function connectionLost() {
  showConnection("lost", "reconnecting");
  setLost(model.lost || lastData);
  reconnectTimer ||= setTimeout(reconnect, RETRY_DELAY);
}

/** Reconnects. A session that has ended redirects to the login page. */
async function reconnect() {
  reconnectTimer = 0;
  if (source.readyState === EventSource.OPEN && byId("live").dataset.state === "live" && Date.now() - lastEvent < MAX_SILENCE) return;
  try {
    await request("/api/v1/state");
    if (source.readyState === EventSource.CLOSED && ++refusals > 1) {
      showConnection("lost", "not live: too many open dashboards, or a proxy blocks the stream");
      await resync();
    }
    connect();
  } catch {
    connectionLost();
  }
}

setInterval(() => {
  if (source && Date.now() - lastEvent > MAX_SILENCE) connectionLost();
}, 2000);
