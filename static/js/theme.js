// The theme switch: changes the page at once and leaves a cookie for the server.
export function watchTheme() {
  document.addEventListener("submit", (event) => {
    const form = event.target.closest("[data-theme-form]");
    if (!form || !event.submitter) return;
    event.preventDefault();
    const theme = event.submitter.value;
    const secure = location.protocol === "https:" ? "; secure" : "";
    document.cookie = `theme=${theme}; path=/; max-age=31536000; samesite=lax${secure}`;
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    for (const button of document.querySelectorAll("[data-theme-form] button[name=theme]")) {
      button.setAttribute("aria-pressed", String(button.value === theme));
    }
    document.dispatchEvent(new CustomEvent("cf:theme", { detail: { theme } }));
  });
}
