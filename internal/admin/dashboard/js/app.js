// The dashboard: each module draws its panels from what the model knows, and listening
// begins when all of them stand.

import { byId, say } from "./dom.js";
import { draws, model } from "./model.js";
import { listen, post } from "./live.js";
import "./overview.js";
import "./budgets.js";
import "./charts.js";
import "./activity.js";
import "./requests.js";
import "./costs.js";
import "./system.js";
import "./control.js";

draws(["state"], () => {
  const s = model.state;
  if (!s) return;
  const host = s.upstream.replace(/^https?:\/\//, "");
  say(byId("upstream"), host);
  byId("upstream").title = s.upstream;
  say(byId("version"), `Weir ${s.version}`);
  byId("logout").hidden = !s.guarded;
});

byId("logout").addEventListener("click", async () => {
  await post("/api/v1/logout").catch(() => {});
  location.assign("/login");
});

// The theme goes round: as the system has it, light, dark.
const THEMES = ["system", "light", "dark"];
const root = document.documentElement;

function sayTheme() {
  const chosen = root.dataset.theme ?? "system";
  const button = byId("theme");
  button.title = `Theme: ${chosen}`;
  button.setAttribute("aria-label", `Theme: ${chosen}. Change it`);
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
  sayTheme();
  dispatchEvent(new Event("themechange"));
});
sayTheme();

// Which section one is in.
const links = [...document.querySelectorAll(".nav a")];
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    for (const link of links) {
      if (link.hash === `#${entry.target.id}`) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
  }
}, { rootMargin: "-30% 0px -65% 0px" });
for (const link of links) seen.observe(document.querySelector(link.hash));

listen();
