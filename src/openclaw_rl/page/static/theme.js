// Before the first paint: the theme that this browser chose; without a choice the system's own is taken.
try {
  const chosen = localStorage.getItem("theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch {
  // a browser that keeps nothing shows the system's theme
}
