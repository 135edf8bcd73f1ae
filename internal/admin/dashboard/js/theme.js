"use strict";
// The theme that was chosen, before anything is painted; without one the system's counts.
{
  const chosen = localStorage.getItem("weir-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
}
