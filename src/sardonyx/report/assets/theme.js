// Light and dark: as the system has it, or as the reader chose. The choice is kept where the browser allows it.

const THEMES = ["system", "light", "dark"];
const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
let theme = "system";
let isPrinting = false;

try {
  theme = localStorage.getItem("sardonyx-report-theme") || "system";
} catch {
  // A page opened from a file may have no storage.
}
if (!THEMES.includes(theme)) theme = "system";

function applyTheme() {
  const root = document.documentElement;
  const isDark = !isPrinting && (theme === "dark" || (theme === "system" && systemIsDark.matches));
  root.toggleAttribute("data-dark", isDark);
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
  const button = document.getElementById("theme");
  button.textContent = { system: "◐ System", light: "☀ Light", dark: "☾ Dark" }[theme];
  button.setAttribute("aria-label", `Colours: ${theme === "system" ? "as the system" : theme}`);
  redrawAll();
}

document.getElementById("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  try {
    localStorage.setItem("sardonyx-report-theme", theme);
  } catch {
    // See above.
  }
  applyTheme();
});
systemIsDark.addEventListener("change", applyTheme);
addEventListener("beforeprint", () => { isPrinting = true; applyTheme(); });
addEventListener("afterprint", () => { isPrinting = false; applyTheme(); });
