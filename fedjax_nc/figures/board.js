"use strict";
// What the page does: it filters, groups, sorts and draws runs. The table's head, the filters and
// the menus are in the page; what comes from runs later is put into it as text, never as HTML.

const at = (id) => document.getElementById(id);
const data = JSON.parse(at("data").textContent);
const DASHES = ["solid", "dashed", "dotted"];
const COLOURS = 8; // of the style sheet: --c0 to --c7

const state = {
  by: [], // numbers of the settings that rows differ in
  sort: { column: "global_accuracy", down: true },
  chosen: new Map(), // key of a row -> which colour and dash it has
  rows: [], // of the table
  lines: [], // those of them that are drawn
  rounds: [], // of the drawn curves
};

// --- numbers and texts

// The mean, and half of its 95 % t interval, which a single value has not.
function mean(values) {
  const found = values.filter((value) => value !== null && value !== undefined);
  const n = found.length;
  if (!n) return null;
  const middle = found.reduce((sum, x) => sum + x, 0) / n;
  const variance = found.reduce((sum, x) => sum + (x - middle) ** 2, 0) / (n - 1);
  return { middle, half: n > 1 ? data.t[n - 2] * Math.sqrt(variance / n) : null };
}

const of = (row, metric) => mean(row.runs.map((run) => run.values[metric]));

function words(found, digits) {
  if (!found) return "–";
  const text = found.middle.toFixed(digits);
  return found.half === null ? text : `${text} ± ${found.half.toFixed(digits)}`;
}

// A setting of a row: numbers of its values, in their order, and how they are written.
const ordered = (numbers) => [...new Set(numbers)].sort((a, b) => a - b);
const codes = (row, i) => ordered(row.runs.map((run) => run.settings[i]));
const setting = (row, i) => codes(row, i).map((code) => data.settings[i].values[code]).join(", ");

function make(tag, attributes, ...inside) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...inside);
  return element;
}

// --- from runs to rows

function passing() {
  const picked = new Map();
  for (const { name, value } of at("facets").querySelectorAll(":checked")) {
    picked.set(name, [...(picked.get(name) ?? []), Number(value)]);
  }
  const asked = at("search").value.toLowerCase().split(/\s+/);
  const filters = [...picked];
  return data.runs
    .filter(({ settings }) => filters.every(([i, codes]) => codes.includes(settings[i])))
    .filter(({ text }) => asked.every((word) => text.includes(word)));
}

// A row has all runs with the same values of the settings that rows differ in. Its label is the
// method and what else can tell two runs of one method apart.
function grouped(runs) {
  const method = data.settings.findIndex(({ name }) => name === "method");
  const telling = state.by.filter((i) => i !== method && data.settings[i].telling);
  const groups = Map.groupBy(runs, (run) => state.by.map((i) => run.settings[i]).join(" "));
  return [...groups].map(([key, runs]) => {
    const row = { key, runs };
    const parts = telling.map((i) => `${data.settings[i].name}=${setting(row, i)}`);
    row.label = [method < 0 ? data.method : setting(row, method), ...parts].join(", ");
    return row;
  });
}

function compare(a, b) {
  const { column, down } = state.sort;
  const sign = down ? -1 : 1;
  const i = data.settings.findIndex(({ name }) => name === column);
  if (i >= 0) return sign * (codes(a, i)[0] - codes(b, i)[0]);
  const [x, y] = [of(a, column), of(b, column)];
  return x && y ? sign * (x.middle - y.middle) : Number(!x) - Number(!y); // without one: last
}

// The mean curve of a row, over the rounds that all its runs have.
function curve(row, metric) {
  const each = row.runs.map(({ curves, schedule }) => {
    return new Map((curves[metric] ?? []).map((value, i) => [data.rounds[schedule][i], value]));
  });
  const rounds = [...each[0].keys()].filter((round) => each.every((one) => one.has(round)));
  return rounds.map((round) => {
    const values = each.map((one) => one.get(round));
    return { round, found: values.includes(null) ? null : mean(values) };
  });
}

// --- the table

function entry(row) {
  const stroke = make("span", { class: "stroke" });
  const button = make("button", { type: "button", "aria-label": `draw ${row.label}` }, stroke);
  const settings = data.settings.map((_, i) => setting(row, i));
  const ends = [...new Set(row.runs.map((run) => run.end))].join(", ");
  const numbers = data.columns.map(([name, digits]) => words(of(row, name), digits));
  const element = make("tr", {}, make("td", {}, button), make("td", {}, ...links(row.runs)));
  element.append(...settings.map((text) => make("td", { title: text }, text)));
  element.append(...[ends, ...numbers].map((text) => make("td", { class: "number" }, text)));
  element.addEventListener("click", (event) => {
    if (event.target.closest("a, summary")) return;
    if (!state.chosen.delete(row.key)) choose(row);
    draw();
  });
  return element;
}

function links(runs) {
  const found = runs.flatMap(({ name, link, report }) => {
    const main = make("a", { href: link, title: name }, name.split(/[\\/]/).pop());
    return report ? [main, make("a", { href: report, title: `of ${name}` }, "report")] : [main];
  });
  if (runs.length < 2) return found;
  return [make("details", {}, make("summary", {}, `${runs.length} runs`), ...found)];
}

function sort(event) {
  const head = event.target.closest("[data-column]");
  if (!head) return;
  const { column } = head.dataset;
  const again = column === state.sort.column;
  state.sort = { column, down: again ? !state.sort.down : head.className === "number" };
  update();
}

function choose(row) {
  const taken = [...state.chosen.values()];
  const free = [...taken.keys(), taken.length].find((number) => !taken.includes(number));
  state.chosen.set(row.key, free);
}

// --- the pictures

const model = (name) => Bokeh.documents.map((one) => one.get_model_by_name(name)).find(Boolean);
const root = getComputedStyle(document.documentElement);
const colourOf = (variable) => root.getPropertyValue(variable).trim();

// Gives a source of Bokeh its rows; the names of its columns stay.
function fill(source, rows) {
  const names = Object.keys(model(source).data);
  model(source).data = Object.fromEntries(names.map((n) => [n, rows.map((row) => row[n])]));
}

function paintCurves(metric) {
  const [points, bands, lines] = [[], [], []];
  for (const { row, colour, dash, curve } of state.lines) {
    const there = curve.filter(({ found }) => found);
    for (const { round: x, found } of there) {
      const alpha = there.length < 2 ? 1 : 0; // one point makes no line
      const text = words(found, metric.digits);
      points.push({ x, y: found.middle, colour, alpha, label: row.label, text });
    }
    const xs = curve.map(({ round }) => round);
    lines.push({ colour, dash, xs, ys: curve.map(({ found }) => found?.middle ?? NaN) });
    const wide = there.filter(({ found }) => found.half !== null);
    const edge = (side) => wide.map(({ found }) => found.middle + side * found.half);
    const rounds = wide.map(({ round }) => round);
    const around = [...rounds, ...rounds.toReversed()];
    bands.push({ colour, xs: around, ys: [...edge(-1), ...edge(1).reverse()] });
  }
  fill("lines", lines);
  fill("bands", bands);
  fill("points", points);
  model("curves").left[0].axis_label = metric.label;
}

function paintClients() {
  const ends = [];
  state.lines.forEach(({ row, colour }, i) => {
    const names = ["", "_std", "_worst"].map((end) => `${at("whose").value}_accuracy${end}`);
    const [middle, std, worst] = names.map((name) => of(row, name)?.middle);
    if (middle === undefined) return;
    const [low, high] = [Math.max(0, middle - std), Math.min(100, middle + std)];
    const [m, s, w] = [middle, std, worst].map((x) => x?.toFixed(1));
    const text = `mean ${m}, deviation ${s}, worst tenth ${w}`;
    ends.push({ y: `${i + 1}`, middle, low, high, worst, colour, label: row.label, text });
  });
  model("clients").y_range.factors = ends.map(({ y }) => y).reverse();
  model("clients").height = 60 + 24 * ends.length;
  fill("ends", ends);
  const told = ends.map(({ label, text }) => `${label}: ${text}`).join("; ");
  at("clients").setAttribute("aria-label", `Accuracy over clients. ${told}`);
}

function mark({ dash, variable }, stroke = make("span", { class: "stroke" })) {
  stroke.style.borderTop = `3px ${dash} var(${variable})`;
  return stroke;
}

function draw() {
  const metric = data.curves[at("metric").value];
  state.lines = [];
  for (const row of state.rows) {
    const number = state.chosen.get(row.key);
    const drawn = number !== undefined;
    row.element.querySelector("button").setAttribute("aria-pressed", drawn);
    if (!drawn) continue;
    const variable = `--c${number % COLOURS}`;
    const dash = DASHES[Math.floor(number / COLOURS) % DASHES.length];
    const points = curve(row, metric.name);
    state.lines.push({ row, dash, variable, colour: colourOf(variable), curve: points });
    mark({ dash, variable }, row.element.querySelector(".stroke"));
  }
  const legend = state.lines.map((line, i) => {
    const label = make("span", {}, line.row.label);
    return make("li", {}, `${i + 1}.`, mark(line), label, make("output", {}));
  });
  at("drawn").replaceChildren(...legend);
  state.rounds = ordered(state.lines.flatMap((line) => line.curve.map(({ round }) => round)));
  const atEnd = at("slider").value === at("slider").max;
  at("slider").max = Math.max(state.rounds.length - 1, 0);
  if (atEnd) at("slider").value = at("slider").max;
  paintCurves(metric);
  paintClients();
  readValues();
  const shown = `${passing().length} of ${data.runs.length} runs in ${state.rows.length} rows`;
  at("status").textContent = `${shown}, ${state.lines.length} drawn`;
}

// Tells the values at the slider's round, or at the last tested one before it.
function readValues() {
  const metric = data.curves[at("metric").value];
  const round = state.rounds[at("slider").value] ?? 0;
  state.lines.forEach(({ curve }, i) => {
    const point = curve.findLast((one) => one.round <= round);
    const earlier = point && point.round < round ? ` (round ${point.round})` : "";
    const output = at("drawn").children[i].querySelector("output");
    output.textContent = words(point?.found, metric.digits) + earlier;
  });
  model("cursor").location = round;
  at("round").textContent = round;
  at("slider").setAttribute("aria-valuetext", `round ${round}`);
}

// Gives Bokeh's axes the colours of the page, which are others at night.
function dress() {
  const [text, soft, rule] = ["--text", "--soft", "--rule"].map(colourOf);
  for (const plot of [model("curves"), model("clients")]) {
    for (const axis of [...plot.below, ...plot.left]) {
      axis.setv({ axis_label_text_color: text, major_label_text_color: text });
      axis.setv({ axis_line_color: soft, major_tick_line_color: soft });
    }
    for (const grid of plot.center) grid.grid_line_color = rule;
    plot.outline_line_color = rule;
  }
  model("cursor").line_color = soft;
  draw();
}

// --- the whole page

function update() {
  const by = [...at("groups").querySelectorAll(":checked")].map((box) => Number(box.value));
  const runs = new Set(state.lines.flatMap(({ row }) => row.runs));
  const regrouped = String(by) !== String(state.by);
  state.by = by;
  state.rows = grouped(passing()).sort(compare);
  for (const row of state.rows) row.element = entry(row);
  at("table").tBodies[0].replaceChildren(...state.rows.map((row) => row.element));
  for (const head of at("table").querySelectorAll("[data-column]")) {
    const word = state.sort.down ? "descending" : "ascending";
    head.setAttribute("aria-sort", head.dataset.column === state.sort.column ? word : "none");
  }
  if (regrouped) {
    state.chosen.clear();
    state.rows.filter((row) => row.runs.some((run) => runs.has(run))).forEach(choose);
  }
  draw();
}

async function start() {
  for (const name of ["curves", "clients"]) {
    await Bokeh.embed.embed_item(data.pictures[name], at(name));
  }
  at("controls").open = !matchMedia("(max-width: 48rem)").matches;
  at("form").addEventListener("input", update);
  at("form").addEventListener("reset", () => setTimeout(update)); // when it is done
  at("table").tHead.addEventListener("click", sort);
  for (const name of ["metric", "whose"]) at(name).addEventListener("change", draw);
  at("clear").addEventListener("click", () => (state.chosen.clear(), draw()));
  at("slider").addEventListener("input", readValues);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", dress);
  update();
  state.rows.slice(0, 6).forEach(choose);
  dress();
}

start();
