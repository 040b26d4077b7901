"use strict";
// Draws what the page's data tell: attention of one layer and head, maps, and one word's view. Nothing is fetched.
const data = JSON.parse(document.getElementById("seen").textContent);
const byId = (id) => document.getElementById(id);
const numbers = (text) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  return Float32Array.from({ length: bytes.length / 2 }, (_, at) => view.getUint16(2 * at, true) / 65535);
};
const without = numbers(data.without), infused = numbers(data.infused);
const maps = data.maps.map((map) => numbers(map));
const pieces = data.labels.length, own = data.own;
const state = { layer: data.layer, head: data.head, by: data.by, special: true, row: -1, column: -1 };

// Positions: pieces, or words made of neighbouring pieces.
function positions() {
  const unitOf = state.by === "words" ? data.units : data.labels.map((_, at) => at);
  const made = [];
  unitOf.forEach((unit, at) => {
    made[unit] ??= { pieces: [], special: data.special[at], term: at >= own, segment: data.segments[at] };
    made[unit].pieces.push(at);
  });
  made.forEach((unit) => {
    const first = unit.pieces[0];
    unit.label = state.by === "words" ? data.words[first] : data.labels[first];
  });
  return made;
}

// Rows are means of their pieces, columns are sums (of maps: means).
function gather(values, width, rows, columns, share) {
  return rows.map((row) => columns.map((column) => {
    let sum = 0;
    for (const i of row.pieces) for (const j of column.pieces) sum += j < width ? values[i * width + j] : 0;
    return sum / row.pieces.length / (share ? column.pieces.length : 1);
  }));
}

function layerOf(values, width) {
  const size = own * width, mean = new Float32Array(size);
  const heads = state.head < 0 ? Array.from({ length: data.heads }, (_, head) => head) : [state.head];
  for (const head of heads) {
    const begin = (state.layer * data.heads + head) * size;
    for (let at = 0; at < size; at++) mean[at] += values[begin + at] / heads.length;
  }
  return mean;
}

const colours = () => {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(["paper", "ink", "soft", "rule", "card", "seen", "more", "less", "known"].map(
    (name) => [name, style.getPropertyValue("--" + name).trim()]));
};
const percent = (value) => (100 * value).toFixed(Math.abs(value) < 0.0995 ? 1 : 0) + " %";
const points = (value) => (value > 0 ? "+" : value < 0 ? "−" : "±") + Math.abs(100 * value).toFixed(1);

class Grid {
  constructor(canvas, kind) {
    Object.assign(this, { canvas, kind, values: [], rows: [], columns: [] });
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerdown", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => { if (kind === "map") choose(-1, -1, null); });
    canvas.addEventListener("keydown", (event) => this.step(event));
    canvas.addEventListener("focus", () => {
      if (this.at().row < 0) choose(0, 0, this);
      else choose(this.at().row, this.at().column, this);
    });
  }
  at() { return this.kind === "map" ? (this.here ?? { row: -1, column: -1 }) : state; }
  tell(values, rows, columns, most) { Object.assign(this, { values, rows, columns, most }); }
  draw() {
    const { canvas, rows, columns } = this, colour = colours(), context = canvas.getContext("2d");
    const font = "12px " + getComputedStyle(document.body).fontFamily;
    context.font = font;
    const cut = (label) => label.length > 14 ? label.slice(0, 13) + "…" : label;
    const wide = (some) => Math.max(...some.map((unit) => context.measureText(cut(unit.label)).width)) + 8;
    const all = this.kind === "map" ? columns : grids[1].columns;  // so that rows of the three pictures stand level
    const left = Math.ceil(wide(rows)), top = Math.ceil(wide(all));
    const room = canvas.parentElement.clientWidth - left - 7;
    const cell = Math.max(13, Math.min(this.kind === "map" ? 24 : 34, Math.floor(room / all.length)));
    const gap = columns.some((unit) => unit.term) ? 5 : 0;
    const x = (column) => left + column * cell + (columns[column]?.term ? gap : 0);
    const y = (row) => top + row * cell + (rows[row]?.term ? gap : 0);
    const width = left + columns.length * cell + gap + 1;
    const height = top + rows.length * cell + (rows.some((unit) => unit.term) ? gap : 0) + 1;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = width * ratio; canvas.height = height * ratio;
    canvas.style.width = width + "px"; canvas.style.height = height + "px";
    Object.assign(this, { left, top, cell, gap });
    context.scale(ratio, ratio);
    context.font = font; context.textBaseline = "middle";
    const { row: chosenRow, column: chosenColumn } = this.at();
    const ink = (unit, chosen) => chosen ? colour.ink : unit.term ? colour.known : unit.special ? colour.soft : colour.ink;
    context.textAlign = "right";
    rows.forEach((unit, row) => {
      context.font = (row === chosenRow ? "600 " : "") + font; context.fillStyle = ink(unit, row === chosenRow);
      context.fillText(cut(unit.label), left - 5, y(row) + cell / 2);
    });
    columns.forEach((unit, column) => {
      context.save();
      context.translate(x(column) + cell / 2, top - 5); context.rotate(-Math.PI / 2); context.textAlign = "left";
      context.font = (column === chosenColumn ? "600 " : "") + font; context.fillStyle = ink(unit, column === chosenColumn);
      context.fillText(cut(unit.label), 0, 0);
      context.restore();
    });
    rows.forEach((_, row) => columns.forEach((_, column) => {
      const value = this.values[row][column], share = this.most ? Math.min(1, Math.abs(value) / this.most) : 0;
      context.fillStyle = colour.card;
      context.fillRect(x(column), y(row), cell - 1, cell - 1);
      context.globalAlpha = this.kind === "map" ? share : Math.sqrt(share);
      context.fillStyle = this.kind === "map" ? colour.known : this.kind !== "change" ? colour.seen : value > 0 ? colour.more : colour.less;
      context.fillRect(x(column), y(row), cell - 1, cell - 1);
      context.globalAlpha = 1;
    }));
    context.strokeStyle = colour.ink; context.lineWidth = 1;
    if (chosenRow >= 0 && chosenRow < rows.length) {
      context.globalAlpha = 0.55;
      context.strokeRect(left - 0.5, y(chosenRow) - 0.5, width - left - 0.5, cell);
      context.globalAlpha = 1;
      if (chosenColumn >= 0 && chosenColumn < columns.length) {
        context.lineWidth = 2;
        context.strokeRect(x(chosenColumn) - 0.5, y(chosenRow) - 0.5, cell, cell);
      }
    }
  }
  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const across = (event.clientX - box.left - this.left), down = (event.clientY - box.top - this.top);
    const place = (far, some) => {
      const first = some.findIndex((unit) => unit.term);
      const at = Math.floor(far / this.cell), late = Math.floor((far - this.gap) / this.cell);
      return first < 0 || at < first ? at : Math.max(first, late);
    };
    const column = place(across, this.columns), row = place(down, this.rows);
    if (row < 0 || row >= this.rows.length) return;
    choose(row, column >= 0 && column < this.columns.length ? column : -1, this);
  }
  step(event) {
    const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const clamp = (value, most) => Math.max(0, Math.min(most - 1, value));
    const { row, column } = this.at();
    choose(clamp(row + move[0], this.rows.length), clamp(column + move[1], this.columns.length), this);
  }
}

const grids = ["without", "infused", "change"].map((kind) => new Grid(byId(kind), kind));
const mapGrids = maps.map((_, number) => new Grid(byId("map" + number), "map"));
let rows = [], columns = [], before = [], after = [];

function choose(row, column, grid) {
  mapGrids.forEach((other) => {
    const here = other === grid ? { row, column } : { row: -1, column: -1 };
    if (other.here?.row !== here.row || other.here?.column !== here.column) { other.here = here; if (other.rows.length) other.draw(); }
  });
  if (grid && grid.kind === "map") {
    const said = row >= 0 && column >= 0 ? `“${grid.rows[row].label}” and “${grid.columns[column].label}”: ${grid.values[row][column].toFixed(2)}` : "";
    byId(grid.canvas.id + "says").textContent = said;
    return;
  }
  if (!grid) { mapGrids.forEach((other) => { byId(other.canvas.id + "says").textContent = ""; }); return; }
  Object.assign(state, { row, column });
  grids.forEach((other) => other.draw());
  drawViews(); say();
}

function say() {
  tell();
  byId("now").replaceChildren(...[...byId("readout").childNodes].map((part) => part.cloneNode(true)));
}

function tell() {
  const out = byId("readout"), { row, column } = state;
  out.replaceChildren();
  const add = (text, name) => {
    const part = document.createElement(name ? "b" : "span");
    if (name && name !== "b") part.className = name;
    part.textContent = text; out.append(part);
  };
  if (row < 0 || row >= rows.length) { add("Point at a square, or pick a word below."); return; }
  if (column < 0) {
    const changes = after[row].map((value, at) => [value - before[row][at], columns[at].label]);
    changes.sort((one, other) => Math.abs(other[0]) - Math.abs(one[0]));
    const told = changes.slice(0, 3).filter(([change]) => Math.abs(change) >= 5e-4);
    add(rows[row].label, "b"); add(told.length ? " changes most: " : ": nothing changes.");
    told.forEach(([change, label], at) => {
      add((at ? ", " : "") + label + " "); add(points(change), change > 0 ? "up" : "down");
    });
    if (told.length) add(" points");
    return;
  }
  const was = before[row][column], is = after[row][column];
  add(rows[row].label, "b"); add(" attends to "); add(columns[column].label, "b");
  add(": " + (columns[column].term ? "an auxiliary term, " : percent(was) + " without knowledge, ") + percent(is) + " with it, ");
  add(points(is - was) + " points", is > was ? "up" : is < was ? "down" : "b");
}

function drawViews() {
  for (const [id, values] of [["view0", before], ["view1", after]]) {
    const box = byId(id), focused = document.activeElement?.dataset?.view === id;
    const most = state.row >= 0 && values[state.row] ? Math.max(...values[state.row], ...(id === "view0" ? after : before)[state.row]) : 0;
    const shown = columns.filter((unit) => !unit.term || id === "view1");
    box.replaceChildren();
    shown.forEach((unit) => {
      const at = columns.indexOf(unit), button = document.createElement("button");
      const value = state.row >= 0 && values[state.row] ? values[state.row][at] : 0;
      button.textContent = unit.label;
      button.type = "button";
      button.dataset.view = id; button.dataset.at = at;
      button.title = state.row >= 0 ? percent(value) : "";
      button.style.setProperty("--v", most ? Math.sqrt(value / most).toFixed(3) : 0);
      button.className = (unit.special && !unit.term ? "special " : "") + (unit.term ? "term " : "") + (at === state.row ? "chosen" : "");
      if (unit.term) button.disabled = true;
      else button.setAttribute("aria-pressed", at === state.row);
      button.tabIndex = !unit.term && at === Math.max(0, state.row) ? 0 : -1;
      button.onclick = () => { choose(at, -1, grids[0]); box.querySelector(`[data-at="${at}"]`)?.focus(); };
      if (unit.term && !shown[shown.indexOf(unit) - 1]?.term) box.append(Object.assign(document.createElement("span"), { className: "then" }));
      box.append(button, " ");
    });
    if (focused) box.querySelector("[tabindex='0']")?.focus();
  }
}
for (const id of ["view0", "view1"]) {
  byId(id).addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(rows.length - 1, Math.max(0, state.row) + move)), -1, grids[0]);
  });
}

function draw() {
  const all = positions(), shown = all.filter((unit) => unit.term || state.special || !unit.special);
  rows = shown.filter((unit) => !unit.term); columns = shown;
  before = gather(layerOf(without, own), own, rows, columns);
  after = gather(layerOf(infused, pieces), pieces, rows, columns);
  const change = after.map((row, i) => row.map((value, j) => value - before[i][j]));
  const most = Math.max(1e-9, ...before.flat(), ...after.flat());
  const reach = Math.max(...change.flat().map(Math.abs));
  const plainColumns = columns.filter((unit) => !unit.term);
  grids[0].tell(before.map((row) => row.slice(0, plainColumns.length)), rows, plainColumns, most);
  grids[1].tell(after, rows, columns, most);
  grids[2].tell(change, rows, columns, reach < 5e-4 ? 0 : reach);
  byId("most").textContent = byId("most1").textContent = percent(most);
  byId("fewest").textContent = "−" + (100 * reach).toFixed(1);
  byId("reach").textContent = reach < 5e-4 ? "nothing changes" : "+" + (100 * reach).toFixed(1) + " points";
  byId("fewest").hidden = byId("fewest").nextElementSibling.hidden = reach < 5e-4;
  const mapShown = all.filter((unit) => unit.term || !unit.special);
  mapGrids.forEach((grid, number) => grid.tell(gather(maps[number], pieces, mapShown, mapShown, true), mapShown, mapShown, 1));
  // Long texts get the page's whole width, one picture below the other.
  document.querySelectorAll(".grids").forEach((box) => box.style.setProperty("--wide", Math.max(320, 13 * columns.length + 90) + "px"));
  [...grids, ...mapGrids].forEach((grid) => grid.draw());
  byId("which").textContent = `layer ${state.layer}, ${state.head < 0 ? "mean of all heads" : "head " + state.head}`;
  document.querySelectorAll(".heads button").forEach((button) => {
    const on = Number(button.dataset.layer) === state.layer && Number(button.dataset.head) === state.head;
    button.setAttribute("aria-selected", on); button.tabIndex = on ? 0 : -1;
  });
  drawViews(); say();
}

const table = document.querySelector(".heads");
const pick = (layer, head) => {
  state.layer = Math.max(0, Math.min(data.layers - 1, layer)); state.head = Math.max(-1, Math.min(data.heads - 1, head));
  draw();
};
table.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) pick(Number(button.dataset.layer), Number(button.dataset.head));
});
table.addEventListener("keydown", (event) => {
  const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!move) return;
  event.preventDefault();
  pick(state.layer + move[0], state.head + move[1]);
  table.querySelector("[aria-selected=true]").focus();
});
document.querySelectorAll("input").forEach((input) => input.addEventListener("change", () => {
  if (input.name === "by") state.by = input.value;
  else state.special = input.value === "shown";
  Object.assign(state, { row: -1, column: -1 });
  start(); draw();
}));

// Begin with the word whose view changes most.
function start() {
  const units = positions().filter((unit) => !unit.term && (state.special || !unit.special));
  const last = layerOf(without, own), now = layerOf(infused, pieces), all = positions();
  const was = gather(last, own, units, all), is = gather(now, pieces, units, all);
  let best = 0;
  units.forEach((unit, at) => {
    const moved = unit.special ? 0 : is[at].reduce((sum, value, j) => sum + Math.abs(value - was[at][j]), 0);
    if (moved > best) { best = moved; state.row = at; }
  });
  if (state.row < 0) state.row = Math.max(0, units.findIndex((unit) => !unit.special));
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
let waiting = 0;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(draw, 80); });
start(); draw();
