// The dashboard. Each imported module registers the panels that it draws from the model; then the
// event stream starts.

import { byId, setText } from "./dom.js";
import { model, registerPanel } from "./model.js";
import { connect, post } from "./live.js";
import { linkTo, route, SCREENS } from "./route.js";
import "./overview.js";
import "./budgets.js";
import "./clients.js";
import "./charts.js";
import "./spending.js";
import "./trends.js";
import "./activity.js";
import "./requests.js";
import "./request.js";
import "./system.js";
import "./control.js";

registerPanel(["state"], () => {
  const s = model.state;
  if (!s) return;
  setText(byId("upstream"), s.upstream.replace(/^https?:\/\//, ""));
  byId("upstream").title = s.upstream;
  setText(byId("version"), `Weir ${s.version}`);
  byId("logout").hidden = !s.guarded;
});

byId("logout").addEventListener("click", async () => {
  await post("/api/v1/logout").catch(() => {});
  location.assign("/login");
});

// The button cycles through the themes.
const THEMES = ["system", "light", "dark"];
const root = document.documentElement;

function showTheme() {
  const theme = root.dataset.theme ?? "system";
  const button = byId("theme");
  button.title = `Theme: ${theme}`;
  button.setAttribute("aria-label", `Theme: ${theme}. Change it`);
}

byId("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(root.dataset.theme ?? "system") + 1) % THEMES.length];
  if (next === "system") {
    delete root.dataset.theme;
    localStorage.removeItem("weir-theme");
  } else {
    root.dataset.theme = next;
    localStorage.setItem("weir-theme", next);
  }
  showTheme();
  dispatchEvent(new Event("themechange"));
});
showTheme();

/** Reports whether the user writes text, so that a key is not a command. */
const isWriting = (target) => target.matches("input:not([type=radio], [type=checkbox]), select");

// The keys 1 to 4 select a screen, "/" selects the search, and Escape leaves the search or the request.
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    if (isWriting(event.target)) event.target.blur();
    else if (route.id) location.hash = linkTo("requests", route.params);
    return;
  }
  if (isWriting(event.target)) return;
  const screen = SCREENS[Number(event.key) - 1];
  if (screen) location.hash = linkTo(screen);
  const search = document.querySelector(".screen:not([hidden]) input[type=search]");
  if (event.key === "/" && search) {
    event.preventDefault();
    search.focus();
  }
});

connect();
