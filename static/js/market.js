// The chart of one offer: price above, availability below, on one axis of time; measured as steps, expected as a fan.
import { axis, band, heading, layout, mount, withShare } from "./plots.js";

const LEVELS = [["0.1", "0.9", 0.3], ["0.25", "0.75", 0.5]]; // 80 and 50 %

function fan(ahead, yaxis, colours, unit) {
  if (!ahead) return [];
  const traces = LEVELS.flatMap(([low, high, share]) => band(ahead.times, ahead[low], ahead[high], yaxis, withShare(colours.fwd_2, share)));
  // Of a count that is all or nothing the median says little: its expected value is drawn.
  const [line, word] = yaxis === "y" ? [ahead["0.5"], "median"] : [ahead.mean, "expected"];
  const middle = { x: ahead.times, y: line, yaxis, mode: "lines", line: { color: colours.fwd, width: 1.5, dash: "dash" }, name: `${word} ${unit}`, showlegend: false };
  return [...traces, middle];
}

function measured([x, y], yaxis, colours, name) {
  return { x, y, yaxis, mode: "lines", line: { color: colours.fwd, width: 1.5, shape: "hv" }, connectgaps: false, name, showlegend: false };
}

// Short labels, so that they never stand on end.
const STOPS = [{ dtickrange: [null, 43_200_000], value: "%H:%M\n%a %-d %b" }, { dtickrange: [43_200_000, null], value: "%-d %b" }];

function draw(doc, colours) {
  const narrow = innerWidth < 640;
  const data = [
    ...fan(doc.price_ahead, "y", colours, "price"), measured(doc.price, "y", colours, "price"),
    ...fan(doc.count_ahead, "y2", colours, "to be had"), measured(doc.count, "y2", colours, "to be had"),
  ];
  const now = { type: "line", xref: "x", yref: "paper", x0: doc.now, x1: doc.now, y0: 0, y1: 1, line: { color: colours.ink, width: 1.5 } };
  const label = { x: doc.now, y: 1, xref: "x", yref: "paper", text: "now", showarrow: false, xanchor: "left", xshift: 4, yanchor: "top", font: { size: 11, color: colours.ink_2 } };
  return {
    data,
    layout: layout(colours, {
      xaxis: axis(colours, { type: "date", anchor: "y2", range: [doc.start, doc.price_ahead?.times.at(-1) ?? doc.now], showgrid: false, nticks: narrow ? 4 : 8, tickangle: 0, tickformatstops: STOPS }),
      yaxis: axis(colours, { domain: [0.42, 1], title: heading(colours, "USD per hour"), tickformat: ".3~f", nticks: 5 }),
      yaxis2: axis(colours, { domain: [0, 0.34], title: heading(colours, "to be had"), rangemode: "tozero", nticks: 4 }),
      shapes: [now], annotations: [label],
    }),
  };
}

mount("market", draw);
