// What every Plotly chart of ours shares: colours from the tokens, type from the page, drawn again when the theme changes.
import { tokens } from "./heatmap/words.js";

const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset", showTips: false };
const NAMES = ["ink", "ink-2", "ink-3", "line", "edge", "surface", "fwd", "fwd-2", "bwd", "bwd-2", "bad", "good"];

// Plotly is large: it loads while the page is read.
export const plotly = new Promise((resolve) => {
  if (window.Plotly) resolve(window.Plotly);
  else document.querySelector("script[data-plotly]")?.addEventListener("load", () => resolve(window.Plotly));
});

export function palette() {
  const colours = tokens(NAMES);
  return Object.fromEntries(NAMES.map((name, i) => [name.replace("-", "_"), colours[i]]));
}

// A colour as rgb(…) or color(…) with another opacity.
export const faint = (colour, share) => `color-mix(in srgb, ${colour} ${Math.round(share * 100)}%, transparent)`;

// Plotly knows rgb() only, so that mixed colours are resolved by the browser first.
export function resolved(colour) {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = 1;
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = colour;
  context.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = context.getImageData(0, 0, 1, 1).data;
  return `rgba(${r},${g},${b},${(a / 255).toFixed(3)})`;
}

export function axis(colours, more = {}) {
  return {
    gridcolor: colours.line, linecolor: colours.line, zerolinecolor: colours.line, tickfont: { size: 11, color: colours.ink_3 },
    automargin: true, ...more,
  };
}

export const heading = (colours, text) => ({ text, font: { size: 11, color: colours.ink_3 }, standoff: 10 });

export function layout(colours, more = {}) {
  return {
    margin: { l: innerWidth < 640 ? 40 : 48, r: 12, t: 8, b: 32 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", autosize: true,
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: colours.ink_2 }, hovermode: "x unified",
    hoverlabel: { bgcolor: colours.surface, bordercolor: colours.edge, font: { size: 12, color: colours.ink } },
    legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, font: { size: 11, color: colours.ink_2 } },
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom", ...more,
  };
}

// The band between two lines over moments, filled. Steps, as what is forecast is a value per tick.
export function band(x, low, high, yaxis, fill) {
  const line = { width: 0, shape: "hv" };
  return [
    { x, y: low, yaxis, mode: "lines", line, hoverinfo: "skip", showlegend: false },
    { x, y: high, yaxis, mode: "lines", line, fill: "tonexty", fillcolor: fill, hoverinfo: "skip", showlegend: false },
  ];
}

// draw(colours) -> {data, layout}; called now and whenever the theme changes, as long as `place` is in the page.
// drawn(place) is called whenever Plotly has laid it out anew, as after a zoom.
export async function show(place, draw, drawn = null) {
  const library = await plotly;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paint = () => {
    if (!place.isConnected) {
      document.removeEventListener("cf:theme", paint);
      dark.removeEventListener("change", paint);
      return;
    }
    const { data, layout: frame } = draw(resolvedPalette());
    library.react(place, data, frame, CONFIG);
  };
  document.addEventListener("cf:theme", paint);
  dark.addEventListener("change", paint);
  paint();
  if (drawn) {
    place.on("plotly_afterplot", () => drawn(place));
    drawn(place);
  }
  return paint;
}

// Draws the document in #{name}-chart into [data-{name}-chart], once, also where htmx brings the place later.
export function mount(name, draw, drawn = null) {
  const start = () => {
    const place = document.querySelector(`[data-${name}-chart]`);
    const source = document.getElementById(`${name}-chart`);
    if (!place || !source || place.dataset.drawn) return;
    place.dataset.drawn = "1";
    const doc = JSON.parse(source.textContent);
    show(place, (colours) => draw(doc, colours), drawn);
  };
  start();
  document.body.addEventListener("htmx:afterSettle", start);
}

function resolvedPalette() {
  return Object.fromEntries(Object.entries(palette()).map(([name, colour]) => [name, resolved(colour)]));
}

export const withShare = (colour, share) => resolved(faint(colour, share));
