// The address of the page: a screen, the filters of the screen and an opened request. The address is the fragment of the
// URL, as in #requests?result=refused or #requests/ID. So a copied URL shows the same screen, and the back button works.

import { changed } from "./model.js";

export const SCREENS = ["budgets", "spending", "requests", "system"];

/** The present address. */
export const route = { screen: "budgets", id: "", params: new URLSearchParams() };

/**
 * Returns the link to a screen with these filters. Empty filters are omitted.
 * @param {string} screen
 * @param {Record<string, string|undefined>|URLSearchParams} filters
 * @param {string} [id] of the request to open
 */
export function linkTo(screen, filters = {}, id = "") {
  const entries = filters instanceof URLSearchParams ? [...filters] : Object.entries(filters);
  const query = new URLSearchParams(entries.filter(([, value]) => value)).toString();
  return `#${screen}${id && "/" + encodeURIComponent(id)}${query && "?" + query}`;
}

/** Returns the link to the present screen with some filters changed. */
export const linkWith = (changes) => linkTo(route.screen, { ...Object.fromEntries(route.params), ...changes });

/** Changes filters of the present screen. A change while the user types replaces the entry in the browser's history. */
export function setFilters(changes, typing = false) {
  history[typing ? "replaceState" : "pushState"](null, "", linkWith(changes));
  read();
}

/** Reads the address of the page. An unknown screen selects the first screen. */
function read() {
  const [path, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
  const [screen, id = ""] = path.split("/");
  route.screen = SCREENS.includes(screen) ? screen : SCREENS[0];
  route.params = new URLSearchParams(query);
  try {
    route.id = route.screen === "requests" ? decodeURIComponent(id) : "";
  } catch {
    route.id = id; // not a valid encoding, and not the ID of a request
  }
  show();
  changed("route");
}

let shown = "";

/** Shows the section of the present screen, and moves the focus to its title. */
function show() {
  const section = route.id ? "request" : route.screen;
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.screen === route.screen) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  for (const form of document.querySelectorAll(`#${route.screen}-filters`)) {
    for (const field of form.elements) if (field.name) field.value = route.params.get(field.name) ?? "";
  }
  if (section === shown) return;
  const first = shown === "";
  shown = section;
  for (const s of document.querySelectorAll(".screen")) s.hidden = s.id !== `screen-${section}`;
  document.title = `${document.querySelector(`#nav a[data-screen=${route.screen}]`).firstChild.data} · Weir`;
  if (first) return;
  scrollTo({ top: 0, behavior: "instant" });
  document.getElementById(`${section}-title`).focus({ preventScroll: true });
}

/** Reports whether a screen is visible. The name "request" is the screen of an opened request. */
export const visible = (screen) => shown === screen;

for (const screen of SCREENS) {
  const form = document.getElementById(`${screen}-filters`);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => {
    if (event.target.name) setFilters({ [event.target.name]: event.target.value }, event.target.type === "search");
  });
}

addEventListener("popstate", read);
read();
