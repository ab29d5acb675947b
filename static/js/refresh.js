// Parts that fetch themselves again when something they show has changed. `live.js` says what changed on document.body as
// "cf:changed" {kind, job, subject}; a part names the nouns it shows in data-refresh, its job (if any) in data-job.
// At most one fetch per part in PAUSE_MS; a part that somebody is typing in, or whose dialog is open, waits.
const PAUSE_MS = 1500;
const due = new Map();

export function watchRefresh() {
  setInterval(noteTime, 1000);
  document.addEventListener("cf:changed", (event) => noteChange(event.detail ?? {}));
  document.addEventListener("cf:refetch", () => noteChange({}));
  document.addEventListener("visibilitychange", () => document.hidden || runDue());
}

function noteChange({ kind = "", job = null }) {
  const noun = kind.split(".")[0];
  for (const part of document.querySelectorAll("[data-refresh]")) {
    const wanted = !noun || part.dataset.refresh.split(" ").includes(noun);
    const mine = !part.dataset.job || !job || part.dataset.job === job;
    if (wanted && mine && part.id && !due.has(part.id)) {
      due.set(part.id, setTimeout(() => fetchPart(part.id), PAUSE_MS * (0.5 + Math.random() / 2)));
    }
  }
}

// Numbers that move without an event (progress, ages) are fetched every so many seconds while somebody looks.
function noteTime() {
  if (document.hidden) return;
  const now = performance.now();
  for (const part of document.querySelectorAll("[data-every]")) {
    part.dataset.since ??= now;
    if (now - part.dataset.since < 1000 * part.dataset.every || due.has(part.id)) continue;
    part.dataset.since = now;
    fetchPart(part.id);
  }
}

function fetchPart(id) {
  const part = document.getElementById(id);
  if (!part || !window.htmx) return due.delete(id);
  if (document.hidden || isInUse(part)) {
    due.set(id, setTimeout(() => fetchPart(id), PAUSE_MS));
    return undefined;
  }
  due.delete(id);
  part.dataset.since = performance.now();
  window.htmx.trigger(part, "cf:refresh");
  return undefined;
}

function runDue() {
  for (const [id, timer] of [...due]) {
    clearTimeout(timer);
    fetchPart(id);
  }
}

function isInUse(part) {
  const focus = document.activeElement;
  const typing = part.contains(focus) && focus.matches("input, select, textarea");
  return typing || part.querySelector("dialog[open], input:checked[data-select]") !== null;
}
