// Starts the dashboard after the first paint, so that the page is visible before its scripts run.

requestAnimationFrame(() => setTimeout(() => import("./main.js")));
