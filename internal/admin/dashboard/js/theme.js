"use strict";
// Applies the stored theme before the first paint. Without a stored theme, the system's theme applies.
{
  const stored = localStorage.getItem("weir-theme");
  if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
}
