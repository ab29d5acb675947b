// The live heatmap of a job: fetches cells, takes deltas, draws at most twice a second, and drops what it cannot draw in time.
import { Cells, StepTimes } from "./heatmap/model.js";
import * as draw from "./heatmap/draw.js";
import { Finder } from "./heatmap/finder.js";
import { legend, marks, readout, table, timeLegend } from "./heatmap/parts.js";
import { age, loss, make, seconds } from "./heatmap/words.js";
import { LiveSocket, isUp, showBadge } from "./live.js";

const DRAW_MS = 500;
const REFETCH_MS = 2000;
const QUIET_MS = 10_000;
const STALE_MS = 60_000;
const HARDNESS_MS = 10_000; // deltas carry no hardness; the rules measure it every few steps
const OVER = ["succeeded", "failed", "cancelled", "draft"];

class Heatmap {
  constructor(card) {
    this.card = card;
    this.job = card.dataset.job;
    this.api = `/api/v1/jobs/${this.job}/`;
    this.part = Object.fromEntries([...card.querySelectorAll("[data-part]")].map((p) => [p.dataset.part, p]));
    Object.assign(this, { choice: { value: "loss", order: "category", view: "chart" }, zoom: null, pick: null, scale: null });
    Object.assign(this, { cells: null, times: null, marks: [], newestSeq: 0, dirty: false, drawing: false, drawnAt: 0, fetchedAt: 0, fetching: null, again: false, heardAt: Date.now() });
    this.turned = this.choice.order;
    this.finder = new Finder(this.part, () => this.turn());
    this.listen();
    this.refetch();
    if (!OVER.includes(card.dataset.status)) {
      this.socket = new LiveSocket(`/ws/jobs/${this.job}/`, {
        onFrame: (frame) => this.take(frame),
        onState: (state) => state === "gap" && this.refetch(),
      });
    }
    setInterval(() => this.tick(), 1000);
  }

  // ---- what comes in ----
  take(frame) {
    this.newestSeq = Math.max(this.newestSeq, frame.seq ?? 0); // also of a hello: reports may have come after our fetch
    if (frame.type === "hello") return this.catchUp();
    if (frame.type !== "delta" && frame.type !== "refetch") return;
    this.heardAt = Date.now();
    if (document.hidden || !this.cells) return; // fetched again when somebody looks
    const result = frame.type === "refetch" || this.zoom ? "refetch" : this.cells.apply(frame);
    if (result === "refetch") this.refetchSoon();
    if (result === "applied") {
      this.times?.apply(frame, this.cells);
      this.drawSoon();
    }
  }

  catchUp() {
    if (this.cells && this.cells.seq < this.newestSeq) this.refetchSoon();
  }

  refetchSoon() {
    if (this.zoom && this.zoom.to < this.cells.doc.current_step) return; // the newest steps are out of view
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refetch(), Math.max(0, this.fetchedAt + REFETCH_MS - Date.now()) + 300 * Math.random());
  }

  async refetch() {
    if (this.fetching) {
      this.again = true;
      return;
    }
    this.fetchedAt = Date.now();
    this.fetching = this.load().catch((error) => this.say(`The numbers could not be fetched: ${error.message}.`));
    await this.fetching;
    this.fetching = null;
    if (this.again) {
      this.again = false;
      this.refetchSoon();
    }
  }

  async load() {
    const query = new URLSearchParams({ order: this.choice.order, ...this.finder.query() });
    if (this.zoom) Object.entries(this.zoom).forEach(([name, step]) => query.set(name, step));
    const asked = query.toString();
    const view = `${this.choice.order} ${new URLSearchParams(this.finder.query())}`; // as asked for: it may change meanwhile
    const doc = await this.get(`heatmap/?${asked}${this.choice.value === "hardness" ? "&value=hardness" : ""}`);
    const keep = this.order && this.order.length === doc.shards.length && this.kept === view;
    if (keep) this.keepOrder(doc); // rows do not change places under the pointer
    this.order = doc.shards.map((s) => s.index);
    this.kept = view;
    this.finder.show(doc);
    this.cells = new Cells(doc);
    if (!this.scale && doc.scale && doc.bins > 3) this.scale = doc.scale;
    this.cells.scale = this.scale ?? doc.scale;
    if (!this.drawnAt) this.drawSoon(); // the first picture does not wait for what stands around it
    const window = new URLSearchParams({ width: doc.width, from: doc.from, to: doc.to });
    const [times, decisions] = doc.bins
      ? await Promise.all([this.get(`workers/?${window}`).catch(() => null), this.get("marks/")])
      : [null, await this.get("marks/")];
    this.times = times && times.mean_s.length ? new StepTimes(times) : null;
    this.marks = decisions.marks;
    if (this.pick && (this.pick.row >= doc.shards.length || this.pick.bin >= doc.bins)) this.pick = null;
    this.part.csv.href = `${this.api}heatmap.csv?${query}`;
    this.drawSoon();
    this.catchUp();
  }

  keepOrder(doc) {
    const place = new Map(this.order.map((index, row) => [index, row]));
    const now = doc.shards.map((shard, row) => row);
    if (!doc.shards.every((shard) => place.has(shard.index))) return;
    now.sort((a, b) => place.get(doc.shards[a].index) - place.get(doc.shards[b].index));
    const moved = new Map(now.map((old, row) => [old, row]));
    for (const name of ["shards", "mean", "max", "tokens", "hardness"]) if (doc[name]) doc[name] = now.map((old) => doc[name][old]);
    doc.nonfinite = doc.nonfinite.map(([row, bin, n]) => [moved.get(row), bin, n]);
    doc.pauses = doc.pauses.map(([row, from, to]) => [moved.get(row), from, to]);
  }

  async get(path) {
    const reply = await fetch(this.api + path); // as the page preloads it: no header of our own, or it is fetched twice
    if (!reply.ok) throw new Error(reply.status === 404 ? "you may not see this job" : `the server answered ${reply.status}`);
    return reply.json();
  }

  // ---- drawing ----
  drawSoon() {
    this.dirty = true;
    if (this.drawing || document.hidden) return;
    this.drawing = true;
    setTimeout(() => requestAnimationFrame(() => this.drawNow()), Math.max(0, this.drawnAt + DRAW_MS - Date.now()));
  }

  async drawNow() {
    this.dirty = false;
    try {
      if (this.choice.view === "table") table(this.part.table, this.cells, this.choice.value);
      else await this.chart();
    } finally {
      this.drawnAt = Date.now();
      this.drawing = false;
      if (this.dirty) this.drawSoon();
    }
  }

  async chart() {
    const { cells, part } = this;
    if (!cells.bins) return;
    const rows = (this.rows = draw.layoutRows(cells.doc.shards, this.choice.order === "category"));
    part.loss.style.setProperty("--h", `${rows.pixels}px`);
    const value = this.choice.value;
    const [z, colours, low, high] = this.painted(value);
    await draw.paint(part.cells, z, rows, cells.bins, colours, low, high);
    this.wire();
    draw.overlay(part.overlay, cells, rows, this.pick, value !== "hardness");
    draw.columns(part.labels, part.values, rows, cells.doc.shards, (...a) => this.label(...a), (...a) => this.latest(...a));
    legend(part.legend, cells, value, rows.size >= 11);
    this.decisions();
    await this.stepTimes();
    draw.axis(part.axis, cells);
    this.say();
    part.whole.hidden = !this.zoom;
    part.note.textContent = this.note();
  }

  painted(value) {
    const { cells } = this;
    if (value === "hardness") {
      return [cells.doc.mean.map((line, row) => line.map((_, bin) => cells.hardness(row, bin))), draw.lossColours(), 0, 1];
    }
    if (value === "past") {
      return [cells.doc.mean.map((line, row) => line.map((_, bin) => cells.past(row, bin)?.z ?? null)), draw.timeColours(), -4.5, 4.5];
    }
    const scale = cells.scale ?? { low: 0, high: 1 };
    return [cells.doc.mean, draw.lossColours(), scale.low, scale.high];
  }

  label(shard, row, y) {
    const hot = cellIsHot(this.cells, row);
    return make("a", { href: `/jobs/${this.job}/shards/${encodeURIComponent(shard.key)}/`, style: y, class: hot ? "hot" : null, title: shard.key, tabindex: "-1" }, shard.key);
  }

  latest(shard, row, y) {
    const total = this.cells.doc.shards.reduce((sum, s) => sum + (s.paused ? 0 : s.weight), 0);
    const share = shard.paused ? "paused" : total > 0 ? (100 * shard.weight / total).toFixed(1) : "–";
    const now = this.choice.value === "hardness" ? shard.hardness.toFixed(2) : loss(shard.latest);
    return [make("span", { style: y }, now), make("span", { style: y, class: "end" }, share)];
  }

  decisions() {
    const { from, to } = this.cells.doc;
    const x = (step) => `--x:${(100 * (step - from)) / Math.max(to - from, 1)}%`;
    marks(this.part, this.marks.filter((m) => m.step >= from && m.step <= to), x);
  }

  async stepTimes() {
    const { part, times, cells } = this;
    for (const name of ["world", "time-head", "time-scroll"]) part[name].hidden = !times;
    if (!times) return;
    const ranks = times.doc.mean_s.map((_, rank) => ({ category: "", key: `worker ${rank}`, rank }));
    const rows = draw.layoutRows(ranks);
    part.time.style.setProperty("--h", `${rows.pixels}px`);
    const z = ranks.map(({ rank }) => Array.from({ length: cells.bins }, (_, bin) => times.ratio(rank, bin)));
    await draw.paint(part["time-cells"], z, rows, cells.bins, draw.timeColours(), -0.27, 0.27);
    const most = draw.worlds(part["world-area"], { ...times.doc, from: cells.doc.from, width: cells.width }, cells.bins);
    part["world-values"].replaceChildren(make("b", { style: "--y:50%" }, String(times.doc.worlds.at(-1)?.workers ?? most)));
    draw.columns(part["time-labels"], part["time-values"], rows, ranks,
      ({ key }, _, y) => make("span", { style: y }, key),
      ({ rank }, _, y) => {
        const now = times.latest(rank);
        const ratio = now === null || !times.doc.median_s ? null : now / times.doc.median_s - 1;
        const late = ratio !== null && ratio > 0.15 ? "late" : "";
        const word = ratio === null ? "–" : `${ratio > 0 ? "+" : ""}${Math.round(100 * ratio)} %`;
        return [make("span", { style: y, class: late }, seconds(now)), make("span", { style: y, class: `end ${late}` }, word)];
      });
    timeLegend(part["time-legend"], times);
  }

  note() {
    const { doc } = this.cells;
    const lost = doc.attempts.filter((a) => a.lost_from !== null).length;
    const what = this.choice.value === "hardness"
      ? "Hardness is a shard's smoothed loss against the other shards', 0.5 for a typical one, each time the rules look"
      : "Loss is the token-weighted mean over all ranks";
    return `${what}, ${doc.width === 1 ? "one step" : `${doc.width} steps`} a cell. Arrow keys move the selected cell; drag to zoom.`
      + (lost ? ` ${lost} earlier attempt${lost > 1 ? "s" : ""} left steps that were done again.` : "")
      + (doc.healthy && !this.cells.bad.size ? "" : " Some losses are not finite.");
  }

  say(problem) {
    if (problem) this.part.readout.replaceChildren(make("span", { class: "bad" }, problem));
    else readout(this.part.readout, this.cells, this.pick, this.job);
  }

  // ---- what people do ----
  listen() {
    for (const group of this.card.querySelectorAll("[data-choice]")) {
      group.addEventListener("click", (event) => {
        const button = event.target.closest("button");
        if (!button) return;
        this.choice[group.dataset.choice] = button.value;
        for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
        if (group.dataset.choice === "order") this.turn();
        if (button.value === "hardness" && group.dataset.choice === "value") this.refetch();
        if (group.dataset.choice === "view") this.show();
        else if (this.cells) this.drawSoon();
      });
    }
    this.part.plot.addEventListener("keydown", (event) => this.key(event));
    this.part.whole.addEventListener("click", () => this.zoomTo(null));
    this.part.table.addEventListener("cf:more", () => this.drawSoon());
    document.addEventListener("cf:theme", () => this.cells && this.drawSoon());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.cells && this.drawSoon());
    document.addEventListener("visibilitychange", () => document.hidden || this.refetch());
    document.addEventListener("cf:changed", ({ detail }) => {
      if (detail.job === this.job && /^(decision|directive|attempt|job)\./.test(detail.kind)) this.refetchSoon();
    });
    new ResizeObserver(() => this.cells && this.drawSoon()).observe(this.part.axis);
  }

  // Other rows than before: from the first page on if the order is another one.
  turn() {
    this.pick = null;
    if (this.turned !== this.choice.order) this.finder.first();
    this.turned = this.choice.order;
    this.part.scroll.scrollTop = 0;
    this.refetch();
  }

  show() {
    const chart = this.choice.view === "chart";
    for (const name of ["charts", "legend"]) this.part[name].hidden = !chart;
    this.part.table.hidden = chart;
    if (this.cells) this.drawSoon();
  }

  wire() {
    if (this.wired) return;
    this.wired = true;
    const plot = this.part.cells;
    plot.on("plotly_hover", (event) => this.choose(this.cellOf(event)));
    plot.on("plotly_click", (event) => this.choose(this.cellOf(event), true));
    plot.on("plotly_doubleclick", () => this.zoomTo(null));
    plot.on("plotly_relayout", (change) => {
      const low = change["xaxis.range[0]"] ?? change["xaxis.range"]?.[0];
      const high = change["xaxis.range[1]"] ?? change["xaxis.range"]?.[1];
      if (low === undefined || high - low >= this.cells.bins - 0.01) return;
      const { from, width } = this.cells.doc;
      this.zoomTo({ from: Math.max(0, Math.floor(from + low * width)), to: Math.ceil(from + high * width) });
    });
  }

  zoomTo(zoom) {
    if (!zoom && !this.zoom) return;
    this.zoom = zoom;
    this.pick = null;
    this.refetch();
  }

  cellOf(event) {
    const y = event.yvals?.[0] ?? event.points?.[0]?.y;
    const x = event.points?.[0]?.x;
    const row = this.rows.tops.findIndex((top) => y >= top && y < top + 1);
    return row < 0 || x === undefined ? null : { row, bin: Math.min(Math.floor(x), this.cells.bins - 1) };
  }

  choose(cell, isClick = false) {
    if (!cell) return;
    this.pick = cell;
    draw.pickOverlay(this.part.overlay, cell, this.rows);
    this.say();
    if (isClick) this.part.plot.focus({ preventScroll: true });
  }

  key(event) {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!this.cells?.bins || (!move && event.key !== "Enter")) return;
    event.preventDefault();
    if (event.key === "Enter") {
      if (this.pick) location.assign(`/jobs/${this.job}/shards/${encodeURIComponent(this.cells.doc.shards[this.pick.row].key)}/`);
      return;
    }
    const from = this.pick ?? { row: 0, bin: this.cells.bins };
    const clamp = (value, most) => Math.min(Math.max(value, 0), most - 1);
    this.choose({ row: clamp(from.row + move[0], this.cells.rows), bin: clamp(from.bin + move[1], this.cells.bins) });
    this.reveal();
  }

  reveal() {
    const y = this.part.plot.offsetTop + this.rows.tops[this.pick.row] * this.rows.size;
    const box = this.part.scroll;
    if (y < box.scrollTop || y + this.rows.size > box.scrollTop + box.clientHeight) box.scrollTop = y - box.clientHeight / 2;
  }

  // ---- freshness ----
  tick() {
    if (!this.socket || !isUp() || document.hidden) return;
    const status = this.cells?.doc.status ?? this.card.dataset.status;
    const old = Date.now() - this.heardAt;
    const waits = status !== "running" || !this.cells?.bins;
    if (!waits && this.choice.value === "hardness" && Date.now() - this.fetchedAt > HARDNESS_MS) this.refetch();
    this.part.charts.classList.toggle("is-stale", !waits && old > STALE_MS);
    if (waits) showBadge("live", "Live", "Changes appear by themselves.");
    else if (old > QUIET_MS) showBadge("warn", `Data ${age(old)} old`, "The trainer has sent nothing since.");
    else showBadge("live", `Live, ${age(Math.round(old / 1000) * 1000 || 300)}`, "Since the last report of the trainer.");
  }
}

// A shard whose newest cell is far above its own past, or diverged.
function cellIsHot(cells, row) {
  const line = cells.doc.mean[row];
  for (let bin = cells.bins - 1; bin >= 0 && bin >= cells.bins - 4; bin--) {
    if (cells.diverged(row, bin)) return true;
    if (line[bin] !== null) return (cells.past(row, bin)?.z ?? 0) > 4;
  }
  return false;
}

for (const card of document.querySelectorAll("[data-heatmap]")) card.heatmap = new Heatmap(card);
