// Sockets that come back by themselves, and what they tell the page.
// On every page the team's socket says what changed: "cf:changed" {kind, job, subject} on document.body; after a time in the
// dark "cf:refetch", since nothing is replayed. The badge in the top bar says whether this page is live.
const RETRY_MS = [500, 1000, 2000, 5000, 10000];
const RIGHT_LOST = 4403;

export class LiveSocket {
  // onFrame(frame), onState("open" | "gap" | "down" | "refused")
  constructor(path, { onFrame, onState = () => {} }) {
    Object.assign(this, { path, onFrame, onState, tries: 0, n: 0, timer: null, socket: null, opened: false });
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", (event) => event.persisted && this.open());
    addEventListener("online", () => this.retry(0));
    this.open();
  }

  open() {
    clearTimeout(this.timer);
    if (this.socket && this.socket.readyState < WebSocket.CLOSING) return;
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}${this.path}`);
    this.socket = socket;
    socket.onmessage = (event) => socket === this.socket && this.take(JSON.parse(event.data));
    socket.onclose = (event) => socket === this.socket && this.lost(event.code);
  }

  take(frame) {
    const missed = this.n > 0 && frame.n !== this.n + 1;
    this.n = frame.n;
    if (frame.type === "hello") {
      this.tries = 0;
      this.onState(this.opened ? "gap" : "open");
      this.opened = true;
    } else if (missed) this.onState("gap");
    this.onFrame(frame);
  }

  lost(code) {
    this.n = 0;
    if (code === RIGHT_LOST) {
      this.onState("refused");
      return;
    }
    this.onState("down");
    this.retry(RETRY_MS[Math.min(this.tries++, RETRY_MS.length - 1)] * (0.75 + Math.random() / 2));
  }

  retry(after) {
    if (this.socket && this.socket.readyState === WebSocket.OPEN) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.open(), after);
  }

  close() {
    clearTimeout(this.timer);
    const socket = this.socket;
    this.socket = null;
    socket?.close();
  }
}

const WORDS = {
  open: ["live", "Live", "Changes appear by themselves."],
  down: ["warn", "Reconnecting", "No connection to the server; what you see may be old."],
  refused: ["off", "Not live", "You may no longer watch this, or you are signed out. Load the page again."],
};

export function showBadge(tone, word, why) {
  const place = document.getElementById("live-badge");
  if (!place || place.dataset.word === word) return;
  place.dataset.word = word;
  const badge = document.createElement("span");
  badge.className = `badge ${tone}`;
  badge.textContent = word;
  badge.title = why;
  place.replaceChildren(badge);
}

let state = "down";
export const isUp = () => state === "open";

function tell(type, detail) {
  document.body.dispatchEvent(new CustomEvent(type, { bubbles: true, detail }));
}

function onTeamState(next) {
  if (next === "gap") tell("cf:refetch", {});
  state = next === "gap" ? "open" : next;
  if (!document.querySelector("[data-heatmap]") || state !== "open") showBadge(...WORDS[state]);
  tell("cf:live", { state });
}

function onTeamFrame(frame) {
  if (frame.type !== "changed") return;
  if (frame.many) tell("cf:refetch", {});
  for (const change of frame.changes) tell("cf:changed", { kind: change.kind, job: change.job, subject: change.subject });
}

const team = document.body.dataset.team;
if (team) new LiveSocket(`/ws/team/${team}/`, { onFrame: onTeamFrame, onState: onTeamState });
