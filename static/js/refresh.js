// Parts that fetch themselves again when something they show has changed. `live.js` says what changed on document.body as
// "cf:changed" {kind, job, subject}; a part names the nouns it shows in data-refresh, its job (if any) in data-job, and in
// data-every after how many seconds it is fetched anyway, for numbers that move without an event.
// Parts of the same page come with one request, at most one in PAUSE_MS; a part that somebody is typing in waits.
const PAUSE_MS = 1500;
const due = new Set();
let timer = null;

export function watchRefresh() {
  document.addEventListener("cf:changed", (event) => noteChange(event.detail ?? {}));
  document.addEventListener("cf:refetch", () => noteChange({}));
  document.addEventListener("visibilitychange", () => document.hidden || flush());
  setInterval(noteTime, 1000);
}

function noteChange({ kind = "", job = null }) {
  const noun = kind.split(".")[0];
  for (const part of document.querySelectorAll("[data-refresh]")) {
    const wanted = !noun || part.dataset.refresh.split(" ").includes(noun);
    const mine = !part.dataset.job || !job || part.dataset.job === job;
    if (wanted && mine) ask(part);
  }
}

function noteTime() {
  if (document.hidden) return;
  const now = performance.now();
  for (const part of document.querySelectorAll("[data-every]")) {
    part.dataset.since ??= now;
    if (now - part.dataset.since < 1000 * part.dataset.every) continue;
    part.dataset.since = now;
    ask(part);
  }
}

function ask(part) {
  due.add(part.id);
  timer ??= setTimeout(flush, PAUSE_MS * (0.5 + Math.random() / 2)); // spread: many browsers hear of the same change
}

function flush() {
  clearTimeout(timer);
  timer = null;
  if (document.hidden || !window.htmx) return; // asked again when somebody looks
  const pages = new Map();
  for (const id of due) {
    const part = document.getElementById(id);
    if (part && isInUse(part)) continue;
    due.delete(id);
    if (part) pages.set(part.getAttribute("hx-get"), [...(pages.get(part.getAttribute("hx-get")) ?? []), part]);
  }
  for (const parts of pages.values()) fetchTogether(parts);
  if (due.size) timer = setTimeout(flush, PAUSE_MS);
}

// The head of a job may be made alone by the server, so it leads only when it is alone.
function fetchTogether(parts) {
  const leader = parts.find((part) => part.id !== "job-head") ?? parts[0];
  const others = parts.filter((part) => part !== leader).map((part) => `#${part.id}`);
  if (others.length) leader.setAttribute("hx-select-oob", others.join(","));
  else leader.removeAttribute("hx-select-oob");
  window.htmx.trigger(leader, "cf:refresh");
}

function isInUse(part) {
  const focus = document.activeElement;
  const typing = part.contains(focus) && focus.matches("input, select, textarea");
  return typing || part.querySelector("dialog[open], input:checked[data-select]") !== null;
}
