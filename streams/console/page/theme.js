// Sets the colour scheme before the first paint, so that a dark page does not flash.
(() => {
  const kept = localStorage.getItem("shoal-theme");
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
})();
