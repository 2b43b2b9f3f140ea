// The map: all rows as shaded cells, and those that the page holds as points, which lead to the browser of rows.
const EDGE = { left: 64, right: 12, top: 12, bottom: 34 };
let view = null; // which plane it shows
let points = []; // { at, x, y } in pixels
let pointed = null; // the point under the mouse, or that arrow keys went to

function placeIn(cells, column) {
  const width = held.columns.length;
  if (column < width) return cells[column];
  const { mean, axes } = held.projection;
  return mean.reduce((sum, middle, i) => sum + (cells[i] - middle) * axes[i][column - width], 0);
}

function viewOf() {
  const ready = held.views[byId("map-view").value];
  if (ready) return ready;
  const [x, y] = ["map-across", "map-up"].map((id) => Number(byId(id).value));
  const ends = [x, y].map((column) => [held.columns[column].low, held.columns[column].high]);
  const rooms = ends.map(([low, high]) => 0.04 * (high - low) || 1e-6);
  return { x, y, low: ends.map(([low], i) => low - rooms[i]), high: ends.map(([, high], i) => high + rooms[i]), counts: [] };
}

function pixelOf(cells) {
  const canvas = byId("map-canvas");
  const [wide, high] = [canvas.clientWidth - EDGE.left - EDGE.right, canvas.clientHeight - EDGE.top - EDGE.bottom];
  const [across, up] = [view.x, view.y].map((column, i) => {
    return Math.min(1, Math.max(0, (placeIn(cells, column) - view.low[i]) / (view.high[i] - view.low[i])));
  });
  return [EDGE.left + across * wide, EDGE.top + (1 - up) * high];
}

// A colour for every point, and what the colours mean.
function colouring() {
  const by = byId("map-colour").value;
  const colours = palette();
  const between = (from, to, share) => `#${[1, 3, 5].map((i) => {
    const [a, b] = [from, to].map((colour) => parseInt(colour.slice(i, i + 2), 16));
    return Math.round(a + (b - a) * share).toString(16).padStart(2, "0");
  }).join("")}`;
  if (by === "recipe") {
    const found = [...new Set(rows.recipe.values)].sort((a, b) => a - b);
    const named = (number) => colours[found.indexOf(number) % colours.length];
    return { of: (at) => named(rows.recipe.values[at]), key: found.map((number) => [named(number), held.rows.recipes[number] ?? "your own"]) };
  }
  if (by === "donor") {
    const donorOf = (at) => (isMade(at) ? rows.main.values[at] : numberAt(at));
    const most = Math.max(1, ...[...placeOf.values()].map(donorOf));
    const ramp = (share) => `hsl(${Math.round(290 * share)} 65% ${isDark() ? 66 : 40}%)`;
    const key = [0, 0.25, 0.5, 0.75, 1].map((share) => [ramp(share), `recorded row ${Math.round(share * most)}`]);
    return { of: (at) => (donorOf(at) < 0 ? null : ramp(donorOf(at) / most)), key };
  }
  const middle = isDark() ? "#9aa1ad" : "#9097a3";
  const ramp = (score) => (score < 0.5 ? between(colours[1], middle, 2 * score) : between(middle, colours[0], 2 * score - 1));
  const of = (at) => (scoreAt(at, by) < 0 ? null : ramp(scoreAt(at, by)));
  return { of, key: [0, 0.25, 0.5, 0.75, 1].map((score) => [ramp(score), String(score)]) };
}

function drawMap() {
  const canvas = byId("map-canvas");
  const pen = canvas.getContext("2d");
  const [wide, high, dense] = [canvas.clientWidth, canvas.clientHeight, devicePixelRatio || 1];
  [canvas.width, canvas.height] = [wide * dense, high * dense];
  pen.scale(dense, dense);
  view = viewOf();
  byId("map-columns").hidden = byId("map-view").value !== "-1";
  const kind = byId("map-kind")?.value ?? "all";
  const { of, key } = colouring();
  shade(pen, kind);
  points = [...placeOf.values()].filter((at) => kind === "all" || isMade(at) === (kind === "made"));
  points.sort((a, b) => rows.made.values[a] - rows.made.values[b]); // recorded ones below
  points = points.map((at) => { const [x, y] = pixelOf(cellsAt("values", at)); return { at, x, y }; });
  for (const { at, x, y } of points) {
    const colour = of(at);
    pen.fillStyle = pen.strokeStyle = colour ?? getComputedStyle(canvas).color;
    pen.globalAlpha = colour ? 0.8 : 0.35;
    pen.beginPath();
    if (isMade(at)) pen.arc(x, y, 2.6, 0, 7);
    else pen.rect(x - 2.2, y - 2.2, 4.4, 4.4);
    isMade(at) ? pen.fill() : pen.stroke();
  }
  pen.globalAlpha = 1;
  mark(pen, getComputedStyle(canvas).color);
  const entry = (style, text) => make("span", { class: "entry" }, make("span", { class: "key", style }), text);
  const shapes = [entry("border:2px solid;border-radius:0", "recorded"), entry("background:currentColor", "counterfactual")];
  byId("map-legend").replaceChildren(...key.map(([colour, text]) => entry(`background:${colour}`, text)),
    ...(kind === "all" && rows.made.values.includes(1) ? shapes : []));
  canvas.dataset.drawn = String(points.length);
}

function shade(pen, kind) {
  const [wide, high] = [pen.canvas.clientWidth - EDGE.left - EDGE.right, pen.canvas.clientHeight - EDGE.top - EDGE.bottom];
  const side = Math.sqrt(view.counts[0]?.length ?? 0);
  const [grey, made] = [getComputedStyle(pen.canvas).color, palette()[1]];
  const most = view.counts.map((counts) => Math.log1p(Math.max(...counts)));
  for (let cell = 0; cell < side * side; cell += 1) {
    const [known, other] = view.counts.map((counts) => counts[cell]);
    const shown = kind === "made" ? 1 : known > 0 || kind === "known" ? 0 : 1;
    const count = shown ? other : known;
    if (!count) continue;
    pen.fillStyle = shown ? made : grey;
    pen.globalAlpha = 0.06 + 0.24 * (Math.log1p(count) / most[shown]);
    const [column, row] = [cell % side, Math.floor(cell / side)];
    pen.fillRect(EDGE.left + (column * wide) / side, EDGE.top + ((side - 1 - row) * high) / side, wide / side + 0.5, high / side + 0.5);
  }
  pen.globalAlpha = 1;
  pen.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--line");
  pen.strokeRect(EDGE.left, EDGE.top, wide, high);
  pen.fillStyle = grey;
  pen.font = "12px system-ui, sans-serif";
  const [bottom, right] = [EDGE.top + high, EDGE.left + wide];
  const text = (words, x, y, align) => { pen.textAlign = align; pen.fillText(words, x, y); };
  text(short(view.low[0]), EDGE.left, bottom + 14, "left");
  text(short(view.high[0]), right, bottom + 14, "right");
  text(held.places[view.x], EDGE.left + wide / 2, bottom + 28, "center");
  text(short(view.low[1]), EDGE.left - 4, bottom, "right");
  text(short(view.high[1]), EDGE.left - 4, EDGE.top + 10, "right");
  pen.save();
  pen.translate(14, EDGE.top + high / 2);
  pen.rotate(-Math.PI / 2);
  text(held.places[view.y], 0, 0, "center");
  pen.restore();
}

// The chosen row and the one that is pointed at, each with a line to the recorded row that most of it comes from.
function mark(pen, ink) {
  pen.strokeStyle = ink;
  for (const at of new Set([chosen, pointed?.at ?? null])) {
    if (at === null) continue;
    const [x, y] = pixelOf(cellsAt("values", at));
    pen.lineWidth = at === chosen ? 2.2 : 1.4;
    pen.beginPath();
    pen.arc(x, y, 7, 0, 7);
    if (isMade(at)) {
      const [toX, toY] = pixelOf(cellsAt("base", at));
      pen.moveTo(x, y);
      pen.lineTo(toX, toY);
      pen.rect(toX - 3, toY - 3, 6, 6);
    }
    pen.stroke();
  }
  pen.lineWidth = 1;
}

function point(one) {
  if (!one || one.at === pointed?.at) return;
  pointed = one;
  const scores = held.aspects.filter((aspect) => scoreAt(one.at, aspect) >= 0).map((aspect) => `${aspect} ${written(scoreAt(one.at, aspect))}`);
  const [x, y] = [view.x, view.y].map((column) => short(placeIn(cellsAt("values", one.at), column)));
  byId("map-said").textContent = `Row ${numberAt(one.at)}, ${kindAt(one.at)}, at ${x}, ${y}: ${scores.join(", ")}. Click or press Enter to open it.`;
  drawMap();
}

function nearestPoint(distance) {
  let [found, least] = [null, Infinity];
  for (const one of points) {
    const far = distance(one);
    if (far < least) [found, least] = [one, far];
  }
  return found;
}

function openPointed() {
  if (!pointed) return;
  const place = `#row=${numberAt(pointed.at)}`;
  if (location.hash === place) follow(true);
  else location.hash = place;
}

function startMap() {
  const canvas = byId("map-canvas");
  const near = (event) => nearestPoint(({ x, y }) => {
    const far = (x - event.offsetX) ** 2 + (y - event.offsetY) ** 2;
    return far < 400 ? far : Infinity;
  });
  canvas.addEventListener("mousemove", (event) => point(near(event)));
  canvas.addEventListener("click", (event) => {
    point(near(event));
    if (near(event)) openPointed();
  });
  canvas.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === "Enter") openPointed();
    if (!way) return;
    event.preventDefault();
    const from = points.find((one) => one.at === (pointed?.at ?? chosen)) ?? points[0];
    point(nearestPoint(({ x, y }) => {
      const [along, aside] = [(x - from.x) * way[0] + (y - from.y) * way[1], Math.abs((x - from.x) * way[1]) + Math.abs((y - from.y) * way[0])];
      return along > 0.5 ? along + 2 * aside : Infinity;
    }));
  });
  for (const id of ["map-view", "map-across", "map-up", "map-colour", "map-kind"]) byId(id)?.addEventListener("change", drawMap);
  addEventListener("resize", drawMap);
  drawn.set(canvas, drawMap);
  drawMap();
}

if (held.rows) startMap();
