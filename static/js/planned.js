// A planned job over one time axis: price, availability and machines held, progress against the deadline, cost against the budget.
import { axis, band, heading, layout, mount, withShare } from "./plots.js";

const STOPS = [{ dtickrange: [null, 60_000], value: "%H:%M:%S" }, { dtickrange: [60_000, 43_200_000], value: "%H:%M\n%a %-d %b" }, { dtickrange: [43_200_000, null], value: "%-d %b" }];

function line([x, y], yaxis, colours, name, more = {}) {
  return { x, y, yaxis, mode: "lines", name, showlegend: false, connectgaps: false, line: { color: colours.fwd, width: 1.5, ...(more.line ?? {}) }, ...Object.fromEntries(Object.entries(more).filter(([key]) => key !== "line")) };
}

function upright(x, colours, colour, dash) {
  return { type: "line", xref: "x", yref: "paper", x0: x, x1: x, y0: 0, y1: 1, line: { color: colour, width: 1.5, dash } };
}

function word(x, y, text, colours, side = "left") {
  return { x, y, xref: "x", yref: "paper", text, showarrow: false, xanchor: side, xshift: side === "left" ? 4 : -4, yanchor: "top", font: { size: 11, color: colours.ink_2 } };
}

function later(a, b) {
  return a && (!b || a > b) ? a : b;
}

// What is forecast after now: the 80 % band, and its middle. Of a count that is all or nothing the median says little: its mean is drawn.
function ahead(doc, middle, yaxis, colours, name) {
  if (!doc) return [];
  return [
    ...band(doc.times, doc.low, doc.high, yaxis, withShare(colours.fwd_2, 0.3)),
    line([doc.times, doc[middle]], yaxis, colours, name, { line: { dash: "dash", width: 1, shape: "hv" } }),
  ];
}

// The decisions stand above the chart, each at its time; many lose their numbers, and those outside of a zoom are away.
function placeMarks(place) {
  const time = place._fullLayout.xaxis, [from, to] = time.range.map((end) => time.d2p(end));
  for (const lane of place.parentElement.querySelectorAll("[data-lane]")) {
    lane.hidden = false;
    for (const mark of lane.children) {
      const at = time.d2p(mark.dataset.at);
      mark.style.setProperty("--x", `${time._offset + at}px`);
      mark.hidden = at < from || at > to;
    }
  }
}

function draw(doc, colours) {
  const hv = { shape: "hv" };
  const stop = [doc.deadline, doc.finish.high, doc.end].reduce((a, b) => later(b, a), null);
  const data = [
    ...ahead(doc.price_ahead, "median", "y", colours, "spot expected, USD an hour"),
    ...ahead(doc.count_ahead, "mean", "y2", colours, "expected to be had"),
    line(doc.price, "y", colours, "spot, USD an hour", { line: hv }),
    line(doc.count, "y2", colours, "to be had", { line: { ...hv, color: colours.ink_2, width: 1, dash: "dot" } }),
    line(doc.spot, "y2", colours, "spot held", { line: { ...hv, width: 0.5 }, stackgroup: "held", fillcolor: withShare(colours.fwd, 0.35) }),
    line(doc.held, "y2", colours, "on-demand held", { line: { ...hv, width: 0.5, color: colours.bwd }, stackgroup: "held", fillcolor: withShare(colours.bwd, 0.45) }),
    line(doc.steps, "y3", colours, "steps done"),
    line(doc.spent, "y4", colours, "spent, USD"),
    line(doc.expected, "y4", colours, "expected at the end, USD", { line: { dash: "dash", width: 1 } }),
  ];
  if (doc.on_demand) data.push(line([[doc.start, doc.end], [doc.on_demand, doc.on_demand]], "y", colours, "on-demand, USD an hour", { line: { color: colours.bwd, width: 1, dash: "dash" } }));
  if (doc.deadline) data.push(line([[doc.start, doc.deadline], [0, doc.goal]], "y3", colours, "even line to the deadline", { line: { color: colours.ink_2, width: 1, dash: "dot" } }));
  if (doc.finish.expected) data.push(line([[doc.end, doc.finish.expected], [doc.steps[1].at(-1), doc.goal]], "y3", colours, "as planned", { line: { width: 1, dash: "dash" } }));
  if (doc.budget) data.push(line([[doc.start, stop], [doc.budget, doc.budget]], "y4", colours, "budget, USD", { line: { color: colours.ink_2, width: 1, dash: "dot" } }));
  const shapes = [], annotations = [];
  if (!doc.ended) shapes.push(upright(doc.end, colours, colours.ink, "solid"));
  if (doc.deadline) { shapes.push(upright(doc.deadline, colours, colours.bwd, "solid")); annotations.push(word(doc.deadline, 1, "deadline", colours, "right")); }
  if (doc.last_safe && doc.last_safe > doc.start) { shapes.push(upright(doc.last_safe, colours, colours.bwd, "dash")); annotations.push(word(doc.last_safe, 0.76, "last safe moment", colours, "right")); }
  const narrow = innerWidth < 640;
  return {
    data,
    layout: layout(colours, {
      xaxis: axis(colours, { type: "date", anchor: "y4", range: [doc.start, stop], showgrid: false, nticks: narrow ? 3 : 8, tickangle: 0, tickformatstops: STOPS }),
      yaxis: axis(colours, { domain: [0.8, 1], title: heading(colours, narrow ? "USD/h" : "USD an hour"), rangemode: "tozero", nticks: 4 }),
      yaxis2: axis(colours, { domain: [0.53, 0.74], title: heading(colours, "machines"), rangemode: "tozero", nticks: 4 }),
      yaxis3: axis(colours, { domain: [0.27, 0.47], title: heading(colours, "steps"), rangemode: "tozero", nticks: 4 }),
      yaxis4: axis(colours, { domain: [0, 0.21], title: heading(colours, "USD"), rangemode: "tozero", nticks: 4 }),
      shapes, annotations,
    }),
  };
}

mount("planned", draw, placeMarks);
