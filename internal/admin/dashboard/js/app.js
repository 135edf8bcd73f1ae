// The entry point of the dashboard. Each imported module registers the panels that it draws from the model; then the
// event stream starts.

import { byId, setText } from "./dom.js";
import { model, registerPanel } from "./model.js";
import { connect, post } from "./live.js";
import "./overview.js";
import "./budgets.js";
import "./clients.js";
import "./charts.js";
import "./activity.js";
import "./requests.js";
import "./costs.js";
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

// The navigation marks the visible section.
const links = [...document.querySelectorAll(".nav a")];
const observer = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    for (const link of links) {
      if (link.hash === `#${entry.target.id}`) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }
}, { rootMargin: "-30% 0px -65% 0px" });
for (const link of links) observer.observe(document.querySelector(link.hash));

connect();
