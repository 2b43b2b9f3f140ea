// The browser of rows: a list, the worst first, one row with its donors, and flags with their export.
const DONORS = ["#0072b2", "#c04a00", "#007a5a", "#a8467f", "#7a6a00", "#4b5bd6", "#a3312a", "#3d7a87"];
const PAGE = 20;
const rows = {};
const placeOf = new Map(); // number of a row -> its place among those held
let list = [];
let first = 0;
let chosen = null;
let flagged = new Set();
let around = []; // recorded rows, which are dots in every drawing

function stored() {
  try {
    return JSON.parse(localStorage.getItem(`mocoda ${held.content}`) ?? "[]");
  } catch {
    return []; // some browsers let no page from a disk store anything
  }
}

function keep() {
  try {
    localStorage.setItem(`mocoda ${held.content}`, JSON.stringify([...flagged]));
  } catch { /* flags last as long as the page is open */ }
}

const isMade = (at) => rows.made.values[at] === 1;
const numberAt = (at) => rows.number.values[at];
const kindAt = (at) => KINDS[rows.made.values[at]];
const cellsAt = (name, at) => rows[name].values.subarray(at * rows[name].width, (at + 1) * rows[name].width);

const scoreAt = (at, aspect) => cellsAt("scores", at)[held.aspects.indexOf(aspect)];
const written = (score) => (score >= 0 ? score.toFixed(2) : "–");

// The mean score of a row over all aspects but "new", as `Scores.worst` has it: what is not known, -1, counts as 1.
function worstAt(at) {
  const judged = held.aspects.filter((aspect) => aspect !== "new");
  return Math.fround(judged.reduce((sum, aspect) => Math.fround(sum + Math.abs(scoreAt(at, aspect))), 0) / judged.length);
}

function sorted() {
  const kind = byId("kind").value;
  const by = byId("sort").value;
  const places = [...placeOf.values()].filter((at) => {
    return kind === "all" || (kind === "flagged" ? flagged.has(numberAt(at)) : isMade(at) === (kind === "made"));
  });
  const known = (score) => (score < 0 ? Infinity : score);
  const key = { worst: worstAt, number: numberAt }[by] ?? ((at) => known(scoreAt(at, by)));
  const values = new Map(places.map((at) => [at, key(at)]));
  return places.sort((one, other) => {
    const [a, b] = [values.get(one), values.get(other)];
    return a === b ? numberAt(one) - numberAt(other) : a < b ? -1 : 1;
  });
}

function listRows() {
  list = sorted();
  first = 0;
  showList();
}

function showList() {
  const body = byId("list").tBodies[0];
  body.replaceChildren(...list.slice(first, first + PAGE).map(listed));
  const last = Math.min(first + PAGE, list.length);
  byId("place").textContent = list.length ? `${first + 1} to ${last} of ${list.length.toLocaleString("en")}` : "no such rows";
  byId("earlier").disabled = first === 0;
  byId("later").disabled = last === list.length;
}

function listed(at) {
  const number = numberAt(at);
  const mixed = ["all", "flagged"].includes(byId("kind").value);
  const box = make("input", { type: "checkbox", "aria-label": `drop row ${number}` });
  box.checked = flagged.has(number);
  box.addEventListener("change", () => flag([number], box.checked));
  const row = make("tr", { "data-row": number },
    make("td", {}, box),
    make("th", { scope: "row" }, make("a", { href: `#row=${number}` }, String(number)), mixed && !isMade(at) ? " recorded" : ""),
    ...held.aspects.map((aspect) => make("td", {}, written(scoreAt(at, aspect)))));
  if (at === chosen) row.setAttribute("aria-current", "true");
  return row;
}

function flag(numbers, on) {
  for (const number of numbers) on ? flagged.add(number) : flagged.delete(number);
  keep();
  byId("flags").textContent = String(flagged.size);
  for (const row of byId("list").tBodies[0].rows) row.querySelector("input").checked = flagged.has(Number(row.dataset.row));
  const button = byId("flag-row");
  if (button) button.setAttribute("aria-pressed", String(flagged.has(Number(button.dataset.row))));
  say(`${flagged.size} rows flagged to drop.`);
}

function download() {
  const lines = [`${held.head} ${held.content}`, ...[...flagged].sort((a, b) => a - b)];
  const link = make("a", { download: "rows-to-drop.txt" });
  link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/plain" }));
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// ---- one row

function donorsAt(at) {
  const donors = new Map(); // row number or "m" -> { letter, colour, parts }
  if (!isMade(at)) return donors;
  const exact = cellsAt("exact", at);
  cellsAt("donor", at).forEach((donor, part) => {
    const key = exact[part] ? String(donor) : "m";
    if (!donors.has(key)) donors.set(key, { donor, parts: [] });
    donors.get(key).parts.push(part);
  });
  let count = 0;
  const order = [...donors.entries()].sort((a, b) => b[1].parts.length - a[1].parts.length);
  for (const [key, one] of order) {
    one.letter = key === "m" ? "~" : String.fromCharCode(65 + (count % 26));
    one.colour = key === "m" ? null : DONORS[count % DONORS.length];
    count += key !== "m";
  }
  return new Map(order);
}

function swatch(one) {
  if (!one) return "";
  return make("span", one.colour ? { class: "swatch", style: `background:${one.colour}` } : { class: "swatch model" }, one.letter);
}

function ownerOf(donors) {
  const owner = new Map();
  for (const one of donors.values()) for (const part of one.parts) owner.set(part, one);
  return owner;
}

function showRow(at, focus) {
  chosen = at;
  const number = numberAt(at);
  const place = list.indexOf(at);
  if (place >= 0 && (place < first || place >= first + PAGE)) first = place - (place % PAGE);
  showList();
  const donors = donorsAt(at);
  const button = make("button", { type: "button", id: "flag-row", "data-row": number, "aria-pressed": String(flagged.has(number)) }, "Flag to drop");
  button.addEventListener("click", () => flag([number], !flagged.has(number)));
  const parts = [
    make("h3", {}, make("a", { href: `#row=${number}` }, `Row ${number}`), `, ${kindAt(at)}`),
    make("p", { class: "controls" }, button),
    facts(at),
  ];
  if (isMade(at)) parts.push(legend(donors));
  if (held.scene) parts.push(drawing(at, donors));
  parts.push(valuesTable(at, donors), edgesOf(at));
  byId("row").replaceChildren(...parts);
  drawn.get(byId("map-canvas"))?.();
  if (focus) {
    byId("row").focus({ preventScroll: true });
    byId("row").scrollIntoView({ block: "nearest" });
  }
}

function facts(at) {
  const episode = rows.episode.values[at];
  const told = [
    ...held.aspects.map((aspect) => [aspect, written(scoreAt(at, aspect))]), ["reward", short(rows.reward.values[at])],
    ["recipe", held.rows.recipes[rows.recipe.values[at]] ?? "your own"],
  ];
  if (rows.terminal.values[at]) told.push(["terminal", "yes"]);
  if (episode >= 0) told.push(["episode, step", `${episode}, ${rows.step.values[at]}`]);
  const shown = told.filter(([, text]) => text !== "–").map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text)));
  return make("dl", { class: "cards" }, ...shown);
}

function legend(donors) {
  const items = [...donors.values()].map((one) => {
    const names = one.parts.map((part) => held.parents[part]).join(", ");
    if (!one.colour) return make("li", {}, swatch(one), ` ${names}: no known donor: drawn by a density, predicted or moved. Beside it is the nearest recorded part`);
    const where = one.donor < 0 ? "a recorded row of the other file" : `recorded row ${one.donor}`;
    const link = placeOf.has(one.donor) ? make("a", { href: `#row=${one.donor}` }, where) : where;
    return make("li", {}, swatch(one), ` ${names}: as in `, link);
  });
  return make("div", {}, make("h4", {}, "Where its parts come from"), make("ul", {}, ...items));
}

function valuesTable(at, donors) {
  const own = cellsAt("values", at);
  const given = cellsAt("given", at);
  const width = held.columns.length;
  const owner = ownerOf(donors);
  const heads = ["part", "column", "now", "next", ...(isMade(at) ? ["from", "recorded there", "and next"] : [])];
  const body = make("tbody");
  held.factors.forEach((columns, part) => {
    columns.forEach((column, i) => {
      const next = column < held.states ? width + column : null;
      const row = make("tr");
      if (i === 0) row.append(make("th", { scope: "rowgroup", rowspan: columns.length }, held.parents[part]));
      row.append(make("td", {}, held.columns[column].name), cell(own[column]), cell(next === null ? NaN : own[next]));
      if (isMade(at)) {
        if (i === 0) row.append(make("td", { rowspan: columns.length }, swatch(owner.get(part))));
        row.append(cell(given[column]), cell(next === null ? NaN : given[next]));
      }
      body.append(row);
    });
  });
  const head = make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text))));
  const words = isMade(at) ? "The row, beside the recorded rows that its parts come from" : "The row";
  return make("div", { class: "wide", tabindex: 0, role: "region", "aria-label": words }, make("table", { class: "values" }, make("caption", {}, words), head, body));
}

const cell = (value) => make("td", { class: "number" }, short(value));

function edgesOf(at) {
  const sparsest = new Set(held.sparsest.map(([p, c]) => `${p}-${c}`));
  const differing = held.rows.masks[rows.mask.values[at]];
  const named = (edges) => edges.map(([p, c]) => `${held.parents[p]} to ${held.parents[c]}`).join(", ");
  const more = differing.filter(([p, c]) => !sparsest.has(`${p}-${c}`));
  const fewer = differing.filter(([p, c]) => sparsest.has(`${p}-${c}`));
  let words = more.length ? `Edges beyond the sparsest graph: ${named(more)}.` : "Its edges are those of the sparsest graph.";
  if (fewer.length) words += ` Absent: ${named(fewer)}.`;
  const gone = new Set(fewer.map(([p, c]) => `${p}-${c}`));
  const edges = [...held.sparsest.filter(([p, c]) => !gone.has(`${p}-${c}`)), ...more];
  const parts = [make("h4", {}, "Active edges"), make("p", { id: "edges" }, words)];
  const whole = document.querySelector("#graph-drawing svg");
  if (whole) {
    const small = whole.cloneNode(true);
    small.classList.add("small");
    small.setAttribute("aria-label", words);
    for (const [p, c] of edges) small.querySelector(`[data-edge="${p}-${c}"]`)?.classList.add("active");
    parts.push(small);
  }
  return make("div", {}, ...parts);
}

// ---- a drawing of positions, from above

function drawing(at, donors) {
  const [left, low, right, high] = held.scene.box;
  const scale = 320 / Math.max(right - left, high - low);
  const [width, height] = [(right - left) * scale, (high - low) * scale];
  const point = (x, y) => [(x - left) * scale, (high - y) * scale];
  const svg = make("svg", { class: "drawing", viewBox: `-8 -8 ${width + 16} ${height + 16}`, role: "img" });
  const owner = ownerOf(donors);
  const values = cellsAt("values", at);
  const base = cellsAt("base", at);
  const goal = cellsAt("goal", at);
  const size = held.columns.length;
  const told = [];
  const dots = around.flatMap((other) => held.scene.bodies.map((body) => {
    return `M${point(cellsAt("values", other)[body.x], cellsAt("values", other)[body.y]).map((at) => at.toFixed(1))}h0`;
  }));
  svg.append(make("path", { class: "around", d: dots.join("") }));
  const shape = (body, x, y, attributes) => body.square
    ? make("rect", { x: x - 8, y: y - 8, width: 16, height: 16, ...attributes })
    : make("circle", { cx: x, cy: y, r: 8, ...attributes });
  for (const body of held.scene.bodies) {
    if (body.goal && goal.length) {
      const [x, y] = point(goal[body.goal[0]], goal[body.goal[1]]);
      svg.append(make("path", { class: "goal", d: `M${x - 7} ${y - 7}l14 14m0 -14l-14 14` }, make("title", {}, `goal of ${body.label}`)));
    }
    if (isMade(at)) {
      const [x, y] = point(base[body.x], base[body.y]);
      svg.append(shape(body, x, y, { class: "recorded" }));
    }
  }
  for (const body of held.scene.bodies) {
    const [x, y] = point(values[body.x], values[body.y]);
    const [toX, toY] = point(values[size + body.x], values[size + body.y]);
    body.owners.forEach((part, i) => {
      const colour = isMade(at) ? owner.get(part)?.colour ?? "var(--quiet)" : "var(--quiet)";
      const half = body.owners[0] === body.owners[1] || i === 0 ? {} : { "clip-path": `inset(0 0 0 50%)`, style: "transform-box:fill-box" };
      if (i === 0 || body.owners[0] !== body.owners[1]) svg.append(shape(body, x, y, { fill: colour, class: "body", ...half }));
    });
    svg.append(make("line", { x1: x, y1: y, x2: toX, y2: toY, stroke: "var(--ink)", "stroke-width": 2 }));
    const left = x > width - 8 * body.label.length; // the label would leave the drawing
    svg.append(make("text", { x: left ? x - 11 : x + 11, y: Math.max(y - 9, 10), "text-anchor": left ? "end" : "start" }, body.label));
    told.push(`${body.label} at ${short(values[body.x])}, ${short(values[body.y])}`);
  }
  const words = isMade(at) ? "Filled: the counterfactual row, in the colours of its donors. Dashed: its main donor." : "The recorded row.";
  svg.setAttribute("aria-label", `${words} ${told.join("; ")}.`);
  return make("figure", {}, svg, make("figcaption", {}, `${words} Lines lead to the next state${held.scene.bodies.some((body) => body.goal) ? "; crosses are goals" : ""}. Dots are recorded rows.`));
}

// ---- links and keys

function follow(focus) {
  const worst = /^#worst=(\w+)$/.exec(location.hash);
  if (worst) {
    byId("sort").value = worst[1];
    listRows();
    if (list.length) showRow(list[0], true);
    byId("rows").scrollIntoView();
    return true;
  }
  const found = /^#row=(\d+)$/.exec(location.hash);
  if (!found) return false;
  const number = Number(found[1]);
  if (!placeOf.has(number)) {
    say(`Row ${number} is not in this page, which holds a sample. mocoda report DATA --show ${number} writes a page with it.`);
    return false;
  }
  say("");
  showRow(placeOf.get(number), focus);
  return true;
}

function move(by) {
  const place = list.indexOf(chosen) + by;
  if (place < 0 || place >= list.length) return;
  history.pushState(null, "", `#row=${numberAt(list[place])}`); // at once, so that a key can be held down
  showRow(list[place], true);
}

function startRows() {
  for (const [name, array] of Object.entries(held.rows)) if (array.data !== undefined) rows[name] = unpacked(array);
  rows.number.values.forEach((number, at) => placeOf.set(number, at));
  flagged = new Set(stored());
  const known = [...placeOf.values()].filter((at) => !isMade(at));
  around = known.filter((at) => rows.sample.values[at]).slice(0, 200);
  byId("flags").textContent = String(flagged.size);
  if (!rows.made.values.includes(1)) byId("kind").value = "known";
  for (const id of ["sort", "kind"]) byId(id).addEventListener("change", listRows);
  byId("earlier").addEventListener("click", () => { first = Math.max(0, first - PAGE); showList(); });
  byId("later").addEventListener("click", () => { first += PAGE; showList(); });
  byId("export").addEventListener("click", download);
  byId("unflag").addEventListener("click", () => flag([...flagged], false));
  byId("find").addEventListener("change", (event) => { location.hash = `row=${event.target.value.replace(/\D/g, "")}`; });
  addEventListener("hashchange", () => follow(true));
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "f" && chosen !== null) flag([numberAt(chosen)], !flagged.has(numberAt(chosen)));
  });
  listRows();
  if (!follow(true) && list.length) showRow(list[0], false);
}

if (held.rows) startRows();
