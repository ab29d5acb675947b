// The text around the cells: readout, legend, decision marks, table.
import { count, loss, make, seconds } from "./words.js";

const PAGE_ROWS = 100;

export function readout(place, cells, pick, job) {
  if (!cells || !cells.bins) {
    place.replaceChildren(make("span", {}, "Loss of each shard appears here as soon as the trainer reports."));
    return;
  }
  if (!pick) {
    const bad = cells.bad.size ? make("span", { class: "bad" }, `${count(cells.bad.size)} diverged cells`) : null;
    place.replaceChildren(make("span", {}, `${count(cells.doc.num_shards)} shards, ${count(cells.doc.current_step)} steps done. Point at a cell for its numbers.`), ...(bad ? [bad] : []));
    return;
  }
  const { row, bin } = pick;
  const shard = cells.doc.shards[row];
  const first = cells.first(bin), last = cells.last(bin);
  const where = first === last ? `step ${count(first)}` : `steps ${count(first)} to ${count(last)}`;
  place.replaceChildren(
    make("span", {}, make("b", {}, shard.key), `, ${where}`),
    ...facts(cells, row, bin),
    make("span", {}, shard.paused ? "paused now" : `weight ${shard.weight}`),
    make("a", { href: `/jobs/${job}/shards/${encodeURIComponent(shard.key)}/` }, "provenance and samples"),
  );
}

function facts(cells, row, bin) {
  const tokens = cells.doc.tokens[row][bin], mean = cells.doc.mean[row][bin], highest = cells.doc.max[row][bin];
  const bad = cells.diverged(row, bin);
  if (tokens === null && !bad) return [make("span", {}, "no samples in these steps")];
  const said = [];
  if (bad) said.push(make("span", { class: "bad" }, `diverged: ${count(bad)} points not finite`));
  if (mean === null) return [...said, ...(bad ? [] : [make("span", {}, "no data: no supervised token")])];
  const past = cells.past(row, bin);
  said.push(make("span", {}, "loss ", make("b", {}, loss(mean)), past ? `, own past ${loss(past.mean)}, z ${past.z.toFixed(1)}` : ""));
  if (highest !== null && highest > mean * 1.001) said.push(make("span", {}, `highest ${loss(highest)}`));
  said.push(make("span", {}, `${count(tokens)} tokens`));
  const hardness = cells.hardness(row, bin);
  if (hardness !== null) said.push(make("span", {}, `hardness ${hardness.toFixed(2)}`));
  return said;
}

export function legend(place, cells, value, labelled) {
  const scale = cells.scale;
  const past = value === "past", hardness = value === "hardness";
  const [least, most] = hardness ? ["easy 0", "1 hard"] : past ? ["own past −4 σ", "+4 σ"] : [`loss ${loss(scale?.low)}`, loss(scale?.high)];
  const key = (words, inner) => make("span", { class: "heat-key" }, svg("scale key", "0 0 16 12", inner), words);
  const classes = past ? "d0 d1 d2 d3 d4 d5 d6 d7 d8" : "q0 q1 q2 q3 q4 q5 q6 q7 q8 q9";
  place.replaceChildren(
    make("span", {}, least, ramp(classes.split(" ")), most),
    ...(hardness ? [] : [key("above the scale", [["rect", { class: "q9", width: 16, height: 12 }], ["path", { class: "notch", d: "M16 0v7l-9-7z" }]])]),
    key("diverged", [["rect", { class: "nan", width: 16, height: 12 }], ["path", { class: "nanx", d: "M4 2l8 8m0-8l-8 8" }]]),
    make("span", {}, make("i", { class: "swatch hatch" }), hardness ? "not measured" : "no samples"),
    key("paused", [["path", { class: "pause", d: "M0 6h16" }]]),
    ...(labelled ? [make("span", { class: "push" }, "now", make("span", { class: "opt" }, ", weight %"))] : []),
  );
}

export function timeLegend(place, times) {
  const classes = "d0 d1 d2 d3 d4 d5 d6 d7 d8".split(" ");
  place.replaceChildren(make("span", {}, `against the median, ${seconds(times.doc.median_s)}`, ramp(classes), "−27 % to +27 %"));
}

function ramp(classes) {
  const rects = classes.map((name, i) => ["rect", { class: name, x: i, width: 1, height: 1 }]);
  return svg("scale", `0 0 ${classes.length} 1`, rects, { preserveAspectRatio: "none", "shape-rendering": "crispEdges" });
}

function svg(kind, box, inner, more = {}) {
  const space = "http://www.w3.org/2000/svg";
  const build = (tag, attributes) => {
    const element = document.createElementNS(space, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const element = build("svg", { class: kind, viewBox: box, "aria-hidden": "true", ...more });
  element.append(...inner.map(([tag, attributes]) => build(tag, attributes)));
  return element;
}

// Two lanes of decisions, and a hairline through all panels for each.
export function marks(part, list, x) {
  for (const direction of ["forward", "backward"]) {
    const kind = direction === "forward" ? "fwd" : "bwd";
    const mine = list.filter((m) => m.direction === direction);
    const crowded = mine.length > 12;
    part[`lane-${direction}`].replaceChildren(...mine.map((m) => make(
      "a", { class: `mark ${kind}${m.open ? " open" : ""}${crowded && !m.open ? " mute" : ""}`, href: m.url, style: x(m.step), title: `${m.name}, ${m.status}: ${m.sentence}` },
      String(m.number), make("span", { class: "sr" }, `, ${m.status}: ${m.sentence}`),
    )));
  }
  part.over.replaceChildren(...list.map((m) => make("i", { style: x(m.step), class: m.data ? "data" : null })));
}

// The same numbers as text. Many shards come in pages; rows already shown stay.
export function table(place, cells, value) {
  const hardness = value === "hardness";
  const cell = hardness ? hardnessCell : tableCell;
  const shown = Math.min(Number(place.dataset.rows ?? PAGE_ROWS), cells.rows);
  const bins = Array.from({ length: cells.bins }, (_, bin) => bin);
  const head = make("tr", {}, make("th", { scope: "col" }, "Shard"), make("th", { scope: "col", class: "n" }, "Now"),
    ...bins.map((bin) => make("th", { scope: "col", class: "n" }, cells.width === 1 ? count(cells.first(bin)) : `${count(cells.first(bin))}–${count(cells.last(bin))}`)));
  const body = cells.doc.shards.slice(0, shown).map((shard, row) => make("tr", {},
    make("th", { scope: "row" }, shard.key), make("td", { class: "n" }, hardness ? shard.hardness.toFixed(2) : loss(shard.latest)), ...bins.map((bin) => cell(cells, row, bin))));
  const scroll = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${hardness ? "Hardness" : "Loss"} per shard and steps` },
    make("table", { class: "table dense" }, make("caption", { class: "sr" }, hardness ? `Hardness per shard from 0 to 1, ${cells.width} steps a column.` : `Loss per shard, ${cells.width} steps a column. “diverged” marks losses that were not finite; “none” that the shard had no samples.`),
      make("thead", {}, head), make("tbody", {}, ...body)));
  const left = place.querySelector(".scroll")?.scrollLeft ?? 0;
  place.replaceChildren(scroll);
  scroll.scrollLeft = left;
  if (shown < cells.rows) {
    const more = make("button", { type: "button", class: "btn small" }, `Show ${count(Math.min(PAGE_ROWS, cells.rows - shown))} more of ${count(cells.rows)}`);
    more.addEventListener("click", () => {
      place.dataset.rows = String(shown + PAGE_ROWS);
      place.dispatchEvent(new CustomEvent("cf:more"));
    });
    place.append(more);
  }
}

function hardnessCell(cells, row, bin) {
  const score = cells.hardness(row, bin);
  return make("td", { class: `n${score === null ? " muted" : ""}` }, score === null ? "–" : score.toFixed(2));
}

function tableCell(cells, row, bin) {
  const mean = cells.doc.mean[row][bin], tokens = cells.doc.tokens[row][bin];
  const bad = cells.diverged(row, bin);
  const word = mean !== null ? loss(mean) : bad ? "" : tokens === null ? "none" : "no data";
  const title = cells.isSpike(row, bin) ? `highest ${loss(cells.doc.max[row][bin])}` : null;
  return make("td", { class: `n${bad ? " is-diverged" : ""}${mean === null && !bad ? " muted" : ""}`, title }, bad ? `${word} diverged`.trim() : word);
}
