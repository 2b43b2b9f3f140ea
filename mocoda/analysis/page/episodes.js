// The browser of episodes: a list, side by side, and one episode over its steps, part by part, with its donors.
const episodes = new Map(); // number -> places of its rows, by step

let current = null;

function gather() {
  const wanted = new Set(held.episodes);
  for (const at of placeOf.values()) {
    const number = rows.episode.values[at];
    if (!wanted.has(number)) continue;
    if (!episodes.has(number)) episodes.set(number, []);
    episodes.get(number).push(at);
  }
  for (const places of episodes.values()) places.sort((a, b) => rows.step.values[a] - rows.step.values[b]);
}

function listEpisodes() {
  const columns = ["recorded", "counterfactual"].map((kind) => make("div", {}, make("h3", {}, kind === "recorded" ? "Recorded" : "Counterfactual"),
    ...held.episodes.filter((number) => kindAt(episodes.get(number)[0]) === kind).map(miniature)));
  byId("episode-list").replaceChildren(...columns.filter((column) => column.childElementCount > 1));
}

// One episode, small: the paths of its bodies from above, or the columns of a part over its steps.
function miniature(number) {
  const places = episodes.get(number);
  const part = byId("miniature").value;
  const [wide, high] = [200, 110];
  const every = Math.ceil(places.length / 80);
  const some = places.filter((_, i) => i % every === 0);
  const svg = make("svg", { viewBox: `-4 -4 ${wide + 8} ${high + 8}`, role: "img", "aria-hidden": "true" });
  const path = (points, attributes) => svg.append(make("path", { d: `M${points.map((point) => point.map((at) => at.toFixed(1)).join(" ")).join("L")}`, ...attributes }));
  if (part === "above") {
    const [left, low, right, top] = held.scene.box;
    const scale = Math.min(wide / (right - left), high / (top - low));
    const point = (cells, body) => [(cells[body.x] - left) * scale + (wide - (right - left) * scale) / 2, (top - cells[body.y]) * scale];
    held.scene.bodies.forEach((body, i) => {
      const stroke = DONORS[i % DONORS.length];
      if (isMade(places[0])) path(some.map((at) => point(cellsAt("base", at), body)), { stroke: "var(--quiet)", "stroke-dasharray": "3 3" });
      path(some.map((at) => point(cellsAt("values", at), body)), { stroke });
      const [cx, cy] = point(cellsAt("values", places.at(-1)), body);
      svg.append(make("circle", { cx, cy, r: 4, fill: stroke }));
    });
  } else {
    held.factors[part].forEach((column, i) => {
      const { low, high: top } = held.columns[column];
      const point = (at, j) => [(wide * j) / Math.max(1, some.length - 1), high * (1 - (cellsAt("values", at)[column] - low) / (top - low || 1))];
      path(some.map(point), { stroke: DONORS[i % DONORS.length] });
    });
  }
  const reason = held.reasons[number];
  return make("a", { href: `#episode=${number}`, "data-episode": number, "aria-current": String(number === current) }, svg,
    make("b", {}, `episode ${number}`), `, ${places.length} steps, worst row scores ${written(Math.min(...places.map(worstAt)))}`,
    ...(reason ? [make("div", { class: "bad" }, reason)] : []));
}

function showEpisode(number, focus) {
  const places = episodes.get(number);
  current = number;
  for (const one of byId("episode-list").querySelectorAll("a")) one.setAttribute("aria-current", String(Number(one.dataset.episode) === number));
  const part = make("select", { id: "episode-part" }, ...held.parents.map((name, i) => make("option", { value: i }, name)));
  const exchanged = held.parents.findIndex((_, i) => isMade(places[0]) && cellsAt("donor", places[0])[i] !== rows.main.values[places[0]]);
  part.value = String(Math.max(0, exchanged)); // where it differs from the recorded episode beside it
  const slider = make("input", { type: "range", id: "episode-step", min: 0, max: places.length - 1, value: 0 });
  const button = make("button", { type: "button" }, "Flag all its steps");
  button.addEventListener("click", () => flag(places.map(numberAt), true));
  const chart = make("figure", { class: "chart", id: "episode-chart" });
  const step = make("div", { id: "episode-row" });
  const drawChart = () => {
    const columns = held.factors[part.value];
    const points = places.flatMap((at) => columns.flatMap((column) => {
      const own = { step: rows.step.values[at], column: held.columns[column].name };
      const lines = [{ ...own, kind: kindAt(at), value: cellsAt("values", at)[column] }];
      if (isMade(at)) lines.push({ ...own, kind: "recorded", value: cellsAt("base", at)[column] });
      return lines;
    }));
    const name = held.parents[part.value];
    draw(chart, "steps", points, { "@y": name }, `${name} over the steps of episode ${number}, beside the recorded episode that most of it comes from.`);
  };
  const drawStep = () => {
    const at = places[slider.value];
    const link = make("a", { href: `#row=${numberAt(at)}` }, `step ${rows.step.values[at]}, row ${numberAt(at)}`);
    step.replaceChildren(make("p", {}, link), ...(held.scene ? [drawing(at, donorsAt(at))] : []));
    slider.setAttribute("aria-valuetext", `step ${rows.step.values[at]}`);
  };
  part.addEventListener("change", drawChart);
  slider.addEventListener("input", drawStep);
  const kind = kindAt(places[0]);
  byId("episode").replaceChildren(
    make("h3", {}, make("a", { href: `#episode=${number}` }, `Episode ${number}`), `, ${kind}, ${places.length} steps`),
    make("p", { class: "controls" }, make("label", {}, "part ", part), make("label", {}, "step ", slider), button),
    chart, ...(kind === "counterfactual" ? [strip(places)] : []), step);
  drawChart();
  drawStep();
  if (focus) {
    byId("episode").focus({ preventScroll: true });
    byId("episode").scrollIntoView({ block: "nearest" });
  }
}

// Every part over the steps, in the colour of the recorded episode that it comes from.
function strip(places) {
  const colours = new Map();
  const [label, line] = [110, 20];
  const width = (640 - label) / places.length;
  const svg = make("svg", { class: "strip", role: "img", viewBox: `0 0 640 ${held.parents.length * line + 4}` });
  const told = [];
  held.parents.forEach((name, part) => {
    svg.append(make("text", { x: 0, y: part * line + 15 }, name.slice(0, 14)));
    const from = new Set();
    places.forEach((at, i) => {
      const donor = cellsAt("exact", at)[part] ? cellsAt("donorEpisode", at)[part] : -1;
      if (donor >= 0 && !colours.has(donor)) colours.set(donor, DONORS[colours.size % DONORS.length]);
      from.add(donor);
      const fill = donor < 0 ? "var(--line)" : colours.get(donor);
      svg.append(make("rect", { x: label + i * width, y: part * line + 2, width: width + 0.5, height: line - 4, fill },
        make("title", {}, `${name}, step ${rows.step.values[at]}: ${donor < 0 ? "by the model" : `episode ${donor}`}`)));
    });
    told.push(`${name}: ${[...from].map((donor) => (donor < 0 ? "the model" : `episode ${donor}`)).join(", ")}`);
  });
  svg.setAttribute("aria-label", `Where each part comes from over the steps. ${told.join("; ")}.`);
  const names = [...colours].map(([donor, colour]) => make("span", {}, make("span", { class: "swatch", style: `background:${colour}` }, "\u00a0"), ` episode ${donor} `));
  return make("figure", {}, svg, make("figcaption", {}, "Where each part comes from: ", ...names, "grey: by the model or a density."));
}

function followEpisode(focus) {
  const found = /^#episode=(\d+)$/.exec(location.hash);
  if (!found) return false;
  if (!episodes.has(Number(found[1]))) {
    say(`Episode ${found[1]} is not in this page, which holds a sample.`);
    return false;
  }
  showEpisode(Number(found[1]), focus);
  return true;
}

if (held.episodes?.length) {
  gather();
  const drawn = [...(held.scene ? [["above", "positions from above"]] : []), ...held.parents.map((name, i) => [i, `${name} over the steps`])];
  byId("miniature").append(...drawn.map(([value, text]) => make("option", { value }, text)));
  byId("miniature").addEventListener("change", listEpisodes);
  listEpisodes();
  addEventListener("hashchange", () => followEpisode(true));
  if (!followEpisode(true)) showEpisode(held.episodes.find((number) => isMade(episodes.get(number)[0])) ?? held.episodes[0], false);
}
document.documentElement.dataset.ready = "true";
