// theme.js: light or dark. Not a module: it runs before the first paint, so that the page does not flash.
(() => {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");

  function chosen() {
    try {
      return localStorage.getItem("genius.theme");
    } catch {
      return null;
    }
  }

  function apply() {
    root.dataset.theme = chosen() ?? (system.matches ? "dark" : "light");
  }

  function toggle() {
    const theme = root.dataset.theme === "dark" ? "light" : "dark";
    root.dataset.theme = theme;
    try {
      localStorage.setItem("genius.theme", theme);
    } catch {
      // Without storage the choice lasts until the page is closed.
    }
  }

  apply();
  system.addEventListener("change", apply);
  document.addEventListener("click", (event) => {
    if (event.target.closest?.("#theme")) toggle();
  });
})();
