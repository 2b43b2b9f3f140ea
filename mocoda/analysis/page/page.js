// The data of the page, its charts in the reader's colours, and the curves of trainings.
const held = JSON.parse(document.getElementById("held").textContent);
const byId = (id) => document.getElementById(id);
const KINDS = ["recorded", "counterfactual"];
const TYPES = { f4: Float32Array, i4: Int32Array, u1: Uint8Array };

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "line", "rect", "circle", "path", "text", "title", "polygon", "marker", "defs"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function unpacked(array) {
  const bytes = Uint8Array.from(atob(array.data), (letter) => letter.charCodeAt(0));
  return { values: new TYPES[array.type](bytes.buffer), width: array.shape[1] ?? 1 };
}

let silence;
function say(sentence) {
  byId("said").textContent = sentence;
  clearTimeout(silence);
  silence = setTimeout(() => { byId("said").textContent = ""; }, 10000);
}

const short = (number) => (Number.isNaN(number) ? "–" : String(Number(number.toPrecision(4))));

// ---- charts

const drawn = new Map(); // figure -> a function that draws it again

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

const palette = () => (isDark()
  ? ["#56b4e9", "#f0a860", "#5fd3a5", "#f0e442", "#e59acb", "#b3c7ff", "#ff9d8a", "#d0d5dd"]
  : ["#0072b2", "#c04a00", "#007a5a", "#7a6a00", "#a8467f", "#4b5bd6", "#a3312a", "#555c68"]);

function look() {
  const style = getComputedStyle(document.documentElement);
  const [ink, line] = ["--ink", "--line"].map((name) => style.getPropertyValue(name).trim());
  const words = { labelColor: ink, titleColor: ink, labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal" };
  return {
    background: "transparent",
    view: { stroke: line },
    axis: { ...words, gridColor: line, domainColor: line, tickColor: line },
    axisQuantitative: { tickCount: 8 },
    legend: words,
    range: { category: palette() },
  };
}

function titled(part, titles) {
  if (Array.isArray(part)) return part.map((one) => titled(one, titles));
  if (part === null || typeof part !== "object") return part;
  const entries = Object.entries(part).map(([key, value]) => {
    return [key, key === "title" && value in titles ? titles[value] : titled(value, titles)];
  });
  return Object.fromEntries(entries);
}

async function draw(figure, name, rows, titles, description, onClick) {
  if (!figure) return;
  drawn.set(figure, () => draw(figure, name, rows, titles, description, onClick));
  const spec = { ...titled(held.charts[name], titles), datasets: { table: rows }, description };
  const place = make("div");
  figure.replaceChildren(place);
  const result = await vegaEmbed(place, spec, { actions: false, renderer: "svg", config: look() });
  if (onClick) result.view.addEventListener("click", (event, item) => item && item.datum && onClick(item.datum));
  figure.dataset.drawn = String(rows.length);
}

function redraw() {
  for (const again of drawn.values()) again();
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  byId("theme").setAttribute("aria-pressed", String(document.documentElement.dataset.theme !== undefined));
}

byId("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
byId("theme").textContent = isDark() ? "Light" : "Dark";

function outline(kinds, low, high) {
  const width = (high - low || 1) / kinds[0].bars.length;
  return kinds.flatMap((one) => [...one.bars, one.bars.at(-1)].map((share, i) => ({ kind: one.kind, x: low + i * width, share })));
}

function drawRanges() {
  const rows = held.columns.flatMap((column) => {
    const { min, max } = column.kinds[0];
    const place = (value) => (max > min ? (value - min) / (max - min) : 0);
    return column.kinds.map((one) => ({
      column: column.name, kind: one.kind, low: place(one.min), high: place(one.max),
      inner_low: place(one.inner[0]), inner_high: place(one.inner[1]),
    }));
  });
  const words = "Range of every column by kind of rows: a line from the smallest to the largest value, a bar for 90% of them.";
  draw(document.querySelector("[data-chart=ranges]"), "ranges", rows, { "@x": "0 and 1: ends of the recorded range" }, words);
}

function drawHistogram() {
  const column = held.columns[byId("histogram-column").value];
  const titles = { "@x": column.name, "@y": "share of rows" };
  draw(byId("histogram"), "histogram", outline(column.kinds, column.low, column.high), titles, `Histogram of ${column.name}.`);
}

function drawTraining() {
  const metric = byId("metric").value;
  drawCurves(byId("curves"), metric);
  draw(byId("ends"), "ends", of(metric, held.training.ends), { "@x": metric }, `${metric} of every agent at the end.`);
}

const of = (metric, rows) => rows.filter((row) => row.metric === metric);

function drawCurves(figure, metric) {
  draw(figure, "curves", of(metric, held.training.curves), { "@y": metric }, `Curves of ${metric} over updates.`);
}

if (held.columns) {
  drawRanges();
  drawHistogram();
  byId("histogram-column").addEventListener("change", drawHistogram);
}
if (held.training) {
  drawTraining();
  for (const figure of document.querySelectorAll("[data-metric]")) drawCurves(figure, figure.dataset.metric);
  byId("metric").addEventListener("change", drawTraining);
}
