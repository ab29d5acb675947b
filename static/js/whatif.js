// The charts of a replay: spread per window, money over time and the timeline of one window. While it still runs, the head is
// fetched again by itself (refresh.js); once it is over, the page is loaded with its result.
import { axis, heading, layout, show, withShare } from "./plots.js";
import { make } from "./heatmap/words.js";

const NAMES = { utility: "Utility, USD", cost: "Cost, USD", finish_slot: "Finish, slot" };
const hues = (c) => [c.fwd, c.bwd, c.good, c.ink_2, c.fwd_2, c.bwd_2, c.edge];
const DASHES = ["solid", "solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];

class Replay {
  constructor(doc) {
    Object.assign(this, doc, { what: "utility", window: 0, policy: doc.order[0], repaint: [] });
    this.chart("spread", (c) => this.spread(c));
    this.chart("spent", (c) => this.spent(c));
    this.chart("timeline", (c) => this.timeline(c));
    this.controls();
    this.numbers();
  }

  async chart(name, draw) {
    const place = document.querySelector(`[data-whatif-chart=${name}]`);
    if (place) this.repaint.push(await show(place, draw));
  }

  again() {
    this.repaint.forEach((paint) => paint());
    this.numbers();
  }

  controls() {
    const values = document.querySelector("[data-whatif-what]");
    values?.addEventListener("click", (event) => {
      if (event.target.tagName !== "BUTTON") return;
      this.what = event.target.value;
      for (const button of values.children) button.setAttribute("aria-pressed", String(button === event.target));
      this.again();
    });
    this.choice("[data-whatif-window]", this.timelines.starts.map((start, i) => [i, `${i + 1}, from ${this.begin(i) ?? `slot ${start}`}`]), (value) => { this.window = Number(value); });
    this.choice("[data-whatif-policy]", [...this.order, ...(this.timelines.clairvoyant ? ["Clairvoyant"] : [])].map((name) => [name, name]), (value) => { this.policy = value; });
  }

  choice(where, options, take) {
    const select = document.querySelector(where);
    select?.replaceChildren(...options.map(([value, label]) => make("option", { value }, label)));
    select?.addEventListener("change", () => { take(select.value); this.again(); });
  }

  begin(i) {
    return this.timelines.begins?.[i]?.slice(0, 16);
  }

  spread(c) {
    const colours = hues(c);
    const box = (name, y, colour) => ({ type: "box", name, y, boxpoints: "all", jitter: 0.4, pointpos: 0, fillcolor: withShare(colour, 0.15), line: { color: colour, width: 1.5 }, marker: { color: withShare(colour, 0.7), size: 4 } });
    const data = this.order.map((name, i) => box(name, this.result.policies[name][this.what], colours[i % colours.length]));
    if (this.what !== "finish_slot") data.push(box("Clairvoyant", this.result.clairvoyant[this.what], c.ink_3));
    const due = { type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: this.result.job.deadline_slots, y1: this.result.job.deadline_slots, line: { color: c.bad, width: 2 } };
    return {
      data,
      layout: layout(c, { showlegend: false, hovermode: "closest", xaxis: axis(c, { tickangle: -20 }), yaxis: axis(c, { title: heading(c, NAMES[this.what]) }), shapes: this.what === "finish_slot" ? [due] : [] }),
    };
  }

  // What was held in a window; null for the optimum in windows beyond those it is kept for.
  held(name, i = this.window) {
    if (name === "Clairvoyant") {
      const best = this.timelines.clairvoyant?.[i];
      return best ? { spot: best.spot, onDemand: best.on_demand, end: best.finish_slot } : null;
    }
    const policy = this.timelines.policies[name];
    return { spot: policy.spot[i], onDemand: policy.on_demand[i], end: this.result.policies[name].finish_slot[i] };
  }

  moneyOf(name) {
    const { spot, onDemand, end } = this.held(name);
    const price = this.timelines.price[this.window];
    let sum = 0;
    return spot.slice(0, end ?? spot.length).map((n, t) => (sum += n * price[t] + onDemand[t] * this.timelines.on_demand_price));
  }

  spent(c) {
    const colours = hues(c);
    const data = this.order.map((name, i) => {
      const money = this.moneyOf(name);
      return { x: money.map((_, t) => t + 1), y: money, name, mode: "lines", line: { color: colours[i % colours.length], width: 1.75, dash: DASHES[i % DASHES.length] }, hovertemplate: "%{y:.4~g} USD" };
    });
    if (this.held("Clairvoyant")) {
      const money = this.moneyOf("Clairvoyant");
      data.push({ x: money.map((_, t) => t + 1), y: money, name: "Clairvoyant", mode: "lines", line: { color: c.ink, width: 1, dash: "dot" }, hovertemplate: "%{y:.4~g} USD" });
    }
    const label = document.querySelector("[data-whatif-window-name]");
    if (label) label.textContent = `window ${this.window + 1}, from ${this.begin(this.window) ?? `slot ${this.timelines.starts[this.window]}`}`;
    return { data, layout: layout(c, { xaxis: axis(c, { title: heading(c, "slot"), rangemode: "tozero" }), yaxis: axis(c, { title: heading(c, "USD"), rangemode: "tozero" }), shapes: [this.due(c)] }) };
  }

  due(c) {
    const x = this.result.job.deadline_slots;
    return { type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line: { color: c.bad, width: 2 } };
  }

  timeline(c) {
    const held = this.held(this.policy);
    const kept = this.timelines.clairvoyant?.length;
    const note = held ? [] : [{ text: `The optimum's plan is kept for the first ${kept} windows`, x: 0.5, y: 0.7, xref: "paper", yref: "paper", showarrow: false, font: { size: 12, color: c.ink_3 } }];
    const none = this.timelines.price[this.window].map(() => 0);
    const { spot, onDemand } = held ?? { spot: none, onDemand: none };
    const x = spot.map((_, t) => t + 0.5);
    const bar = (y, name, colour) => ({ type: "bar", x, y, name, marker: { color: colour, line: { width: 0 } }, hovertemplate: `%{y} ${name}` });
    const there = { x: spot.map((_, t) => t), y: this.timelines.availability[this.window], name: "spot there", mode: "lines", line: { color: c.ink_3, width: 1, dash: "dot", shape: "hv" }, hovertemplate: "%{y} there" };
    const price = { x: spot.map((_, t) => t), y: this.timelines.price[this.window], yaxis: "y2", name: "spot price", mode: "lines", line: { color: c.bwd, width: 1.25, shape: "hv" }, hovertemplate: "%{y:.4~g} USD" };
    return {
      data: [bar(spot, "spot", c.fwd_2), bar(onDemand, "on-demand", c.fwd), there, price],
      layout: layout(c, {
        barmode: "stack", bargap: 0, annotations: note,
        xaxis: axis(c, { title: heading(c, "slot"), anchor: "y2", range: [0, spot.length], showgrid: false }),
        yaxis: axis(c, { domain: [0.34, 1], title: heading(c, "GPUs"), rangemode: "tozero" }),
        yaxis2: axis(c, { domain: [0, 0.24], title: heading(c, "USD per slot"), nticks: 3, tickformat: ".3~g" }),
        shapes: [this.due(c)],
      }),
    };
  }

  // The timeline as a table, made when it is opened.
  numbers() {
    const place = document.querySelector("[data-whatif-numbers]");
    if (!place) return;
    const fill = () => place.open && place.querySelector(".scroll").replaceChildren(this.table());
    if (!place.dataset.wired) place.addEventListener("toggle", () => this.numbers());
    place.dataset.wired = "1";
    fill();
  }

  table() {
    const [w, names] = [this.window, this.order];
    const head = make("tr", {}, ...["Slot", "Spot there", "Spot price", ...names.flatMap((n) => [`${n} spot`, `${n} on-demand`])].map((t) => make("th", { scope: "col", class: "n" }, t)));
    const rows = this.timelines.availability[w].map((there, t) => make("tr", {}, make("th", { scope: "row", class: "plain n" }, String(t)), ...[there, this.timelines.price[w][t], ...names.flatMap((n) => { const h = this.held(n); return [h.spot[t], h.onDemand[t]]; })].map((v) => make("td", { class: "n" }, String(v)))));
    return make("table", { class: "table dense" }, make("thead", {}, head), make("tbody", {}, ...rows));
  }
}

const source = document.getElementById("whatif-result");
if (source) new Replay(JSON.parse(source.textContent));

// The head says by itself when it is over: it then carries no refresh any more.
if (document.querySelector("[data-when-over]")) {
  document.body.addEventListener("htmx:afterSettle", () => {
    const head = document.getElementById("whatif-run");
    if (head && !head.hasAttribute("data-refresh")) location.reload();
  });
}
