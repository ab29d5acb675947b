// Drawing: Plotly paints the cells, an SVG over it what a colour cannot say (diverged, above the scale, paused, chosen), and
// HTML the text, so that type keeps its size at every width.
import { make, tokens } from "./words.js";

const SVG = "http://www.w3.org/2000/svg";
const GAP = 0.5; // between categories, in rows

// Where rows lie: top edge of each in row units, and the height of all. A gap stands between categories if rows are few and in groups.
export function layoutRows(shards, grouped = true) {
  const roomy = grouped && shards.length <= 120;
  const tops = [];
  let y = 0;
  shards.forEach((shard, row) => {
    if (roomy && row > 0 && shard.category !== shards[row - 1].category) y += GAP;
    tops.push(y);
    y += 1;
  });
  const size = shards.length <= 40 ? 14 : shards.length <= 120 ? 12 : shards.length <= 400 ? 6 : 3;
  return { tops, height: y, size, pixels: Math.max(y * size, 28), roomy, grouped };
}

function stepsScale(colours) {
  // A colour scale of steps, not of blends: each step keeps its place in the order for every eye.
  return colours.flatMap((colour, i) => [[i / colours.length, colour], [(i + 1) / colours.length, colour]]);
}

// z [row][bin] with tops -> rows of Plotly, with an empty one in each gap; the first row is drawn at the top.
function trace(z, rows, bins, colours, low, high) {
  const edges = [0];
  const lines = [];
  rows.tops.forEach((top, row) => {
    if (top > edges[edges.length - 1] + 1e-9) {
      lines.push(new Array(bins).fill(null));
      edges.push(top);
    }
    lines.push(z[row]);
    edges.push(top + 1);
  });
  return {
    type: "heatmap", z: lines, x0: 0.5, dx: 1, y: edges, zmin: low, zmax: high, zauto: false, showscale: false,
    colorscale: stepsScale(colours), hoverinfo: "none", hoverongaps: true, zsmooth: false,
  };
}

function frame(bins, height) {
  const axis = { visible: false, fixedrange: true, automargin: false };
  return {
    margin: { l: 0, r: 0, t: 0, b: 0, pad: 0 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    xaxis: { ...axis, range: [0, bins], fixedrange: false }, yaxis: { ...axis, range: [height, 0] },
    showlegend: false, dragmode: "zoom", hovermode: "closest", autosize: true, font: { size: 11 },
  };
}

const CONFIG = { displayModeBar: false, responsive: false, doubleClick: false, scrollZoom: false, showTips: false };

// Plotly is large: it loads while the numbers are fetched.
const plotly = new Promise((resolve) => {
  if (window.Plotly) resolve();
  else document.querySelector("script[data-plotly]")?.addEventListener("load", () => resolve());
});

export async function paint(place, z, rows, bins, colours, low, high) {
  await plotly;
  return window.Plotly.react(place, [trace(z, rows, bins, colours, low, high)], frame(bins, rows.height), CONFIG);
}

export const lossColours = () => tokens(["q0", "q1", "q2", "q3", "q4", "q5", "q6", "q7", "q8", "q9"]);
export const timeColours = () => tokens(["d0", "d1", "d2", "d3", "d4", "d5", "d6", "d7", "d8"]);

function path(kind, d) {
  const element = document.createElementNS(SVG, "path");
  element.setAttribute("class", kind);
  element.setAttribute("d", d);
  return element;
}

// What lies over the cells of the loss chart.
export function overlay(svg, cells, rows, pick, ofLoss = true) {
  svg.setAttribute("viewBox", `0 0 ${Math.max(cells.bins, 1)} ${Math.max(rows.height, 1)}`);
  const at = (row) => rows.tops[row];
  let gaps = "", bad = "", cross = "", notch = "", pause = "";
  rows.tops.forEach((top, row) => {
    const before = row ? rows.tops[row - 1] + 1 : 0;
    const edge = rows.size >= 6 ? 0.5 / rows.size : 0; // a hairline of ground between rows
    if (top > before || edge) gaps += `M0 ${before - edge}H${cells.bins}V${top + edge}H0z`;
  });
  for (const key of cells.bad.keys()) {
    const [row, bin] = key.split(":").map(Number);
    if (row >= rows.tops.length) continue;
    bad += `M${bin} ${at(row)}h1v1h-1z`;
    if (rows.size >= 6) cross += `M${bin + 0.2} ${at(row) + 0.2}l.6 .6m0 -.6l-.6 .6`;
  }
  for (let row = 0; row < cells.rows; row++) {
    for (let bin = 0; bin < cells.bins; bin++) {
      if (ofLoss && cells.isSpike(row, bin) && !cells.diverged(row, bin)) notch += `M${bin + 1} ${at(row)}v.55l-.9 -.55z`;
    }
  }
  for (const [row, from, to] of cells.doc.pauses) {
    const start = Math.max(0, (from - cells.doc.from) / cells.width);
    const stop = to === null ? cells.bins : Math.min(cells.bins, (to - cells.doc.from) / cells.width);
    if (stop > start) pause += `M${start} ${at(row) + 0.5}H${stop}`;
  }
  const chosen = pick ? `M${pick.bin} ${at(pick.row)}h1v1h-1z` : "";
  svg.replaceChildren(
    path("gap", gaps), path("over-scale", ofLoss ? notchGround(cells, rows) : ""), path("nan", bad), path("nanx", cross),
    path("notch", notch), path("pause", pause), path("pick", chosen),
  );
}

// A spike inside a bin takes the darkest step, whatever the mean of the bin is.
function notchGround(cells, rows) {
  let ground = "";
  for (let row = 0; row < cells.rows; row++) {
    for (let bin = 0; bin < cells.bins; bin++) {
      if (cells.isSpike(row, bin) && !cells.diverged(row, bin)) ground += `M${bin} ${rows.tops[row]}h1v${rows.size >= 6 ? 0.93 : 1}h-1z`;
    }
  }
  return ground;
}

export function pickOverlay(svg, pick, rows) {
  svg.lastElementChild?.setAttribute("d", pick ? `M${pick.bin} ${rows.tops[pick.row]}h1v1h-1z` : "");
}

// Label and value columns. `label(row)` and `values(row)` give elements; where rows are thin only categories are named, or some shards if
// rows are in another order.
export function columns(lab, val, rows, shards, label, values) {
  const share = (row) => `--y:max(7px, ${(100 * (rows.tops[row] + 0.5)) / Math.max(rows.height, 1)}%)`;
  const left = [], right = [];
  let named = -Infinity;
  shards.forEach((shard, row) => {
    if (rows.size >= 11) {
      left.push(label(shard, row, share(row)));
      right.push(...values(shard, row, share(row)));
    } else if (row === 0 || !rows.grouped || shard.category !== shards[row - 1].category) {
      if ((row - named) * rows.size < 14) return; // it would lie on the one before
      named = row;
      left.push(make("span", { style: share(row) }, (rows.grouped && shard.category) || shard.key));
    }
  });
  lab.replaceChildren(...left);
  val.replaceChildren(...right);
}

// World size over steps, as an area.
export function worlds(svg, doc, bins) {
  const most = Math.max(1, ...doc.worlds.map((w) => w.workers));
  const x = (step) => Math.min(Math.max((step - doc.from) / doc.width, 0), bins);
  let d = "";
  doc.worlds.forEach((world, i) => {
    const stop = i + 1 < doc.worlds.length ? x(doc.worlds[i + 1].from) : bins;
    d += `M${x(world.from)} 100V${100 - (100 * world.workers) / most}H${stop}V100z`;
  });
  svg.setAttribute("viewBox", `0 0 ${Math.max(bins, 1)} 100`);
  svg.replaceChildren(path("area edged", d));
  return most;
}

// Ticks at round steps.
export function axis(place, cells) {
  const span = Math.max(cells.doc.to - cells.doc.from, 1);
  const rough = span / 6;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].map((f) => f * unit).find((s) => s >= rough));
  const ticks = [make("span", { style: "--x:0%" }, `step ${cells.doc.from.toLocaleString("en")}`)];
  for (let s = Math.ceil((cells.doc.from + span * 0.06) / step) * step; s < cells.doc.to - span * 0.06; s += step) {
    ticks.push(make("span", { style: `--x:${(100 * (s - cells.doc.from)) / span}%`, class: ticks.length % 2 ? "opt" : null }, s.toLocaleString("en")));
  }
  ticks.push(make("span", { style: "--x:100%", class: "last" }, Math.min(cells.doc.current_step, cells.doc.to).toLocaleString("en")));
  place.replaceChildren(...ticks);
}
