// Numbers and small elements as the page shows them.
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value) => whole.format(value);
export function loss(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1e5) return value.toExponential(1);
  return size >= 100 ? value.toFixed(0) : size >= 0.1 ? value.toFixed(2) : value.toPrecision(2);
}
export function seconds(value) {
  if (value === null || value === undefined) return "–";
  return value >= 10 ? `${value.toFixed(1)} s` : value >= 1 ? `${value.toFixed(2)} s` : `${(value * 1000).toFixed(0)} ms`;
}
export function steps(value) {
  return value >= 10000 && value % 1000 === 0 ? `${value / 1000}k` : count(value);
}
export function age(ms) {
  const s = Math.max(0, ms / 1000);
  return s < 10 ? `${s.toFixed(1)} s` : s < 120 ? `${Math.round(s)} s` : s < 7200 ? `${Math.round(s / 60)} min` : `${Math.round(s / 3600)} h`;
}

// make("span", {class: "x", style: "--y:3%"}, "text", child)
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function tokens(names) {
  const style = getComputedStyle(document.documentElement);
  const probe = make("i", { style: "display:none" });
  document.body.append(probe);
  // light-dark() is resolved only where a colour is used.
  const colours = names.map((name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color || style.getPropertyValue(`--${name}`);
  });
  probe.remove();
  return colours;
}
