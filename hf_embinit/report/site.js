"use strict";
/* Filters, sorting, and the search of a token's neighbours. All text is set as text, never as HTML. */

const $ = (id) => document.getElementById(id);

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/* --- the leaderboard */

const boards = [...document.querySelectorAll(".board")];
const filters = [...document.querySelectorAll("[data-filter]")];

function matches(board) {
  const list = (name) => JSON.parse(board.dataset[name]);
  return filters.every((control) => {
    const name = control.dataset.filter, wanted = control.value;
    if (!wanted) return true;
    return name === "init" || name === "makes" ? list(name).includes(wanted) : board.dataset[name] === wanted;
  }) && (!$("filter-seeds").checked || Number(board.dataset.seeds) > 1);
}

function filter() {
  const shown = boards.filter((board) => {
    board.hidden = !matches(board);
    return !board.hidden;
  });
  const init = $("filter-init").value, makes = $("filter-makes").value;
  for (const row of document.querySelectorAll(".board tbody tr[data-init]"))
    row.classList.toggle("chosen", Boolean(init) && row.dataset.init === init);
  $("shown").textContent = `${shown.length} of ${boards.length} settings shown.`;
  stand(shown, init, makes);
}

function stand(shown, init, makes) {
  const counts = new Map();
  for (const board of shown)
    for (const row of board.querySelector(".by-score").querySelectorAll("tbody tr")) {
      const key = JSON.stringify([row.dataset.init, row.dataset.makes]);
      if (!counts.has(key)) counts.set(key, { ahead: 0, level: 0, behind: 0, unknown: 0 });
      counts.get(key)[row.dataset.verdict] += 1;
    }
  for (const row of $("standings").tBodies[0].rows) {
    const mine = [row.dataset.init, row.cells[1].textContent];
    const found = counts.get(JSON.stringify(mine));
    row.hidden = !found || (init && mine[0] !== init) || (makes && mine[1] !== makes);
    if (found) ["ahead", "level", "behind", "unknown"].forEach((verdict, i) => {
      row.cells[2 + i].textContent = found[verdict];
    });
  }
}

function sort(button) {
  const head = button.closest("th"), table = button.closest("table");
  const down = head.ariaSort === "ascending", column = head.cellIndex;
  const value = (row) => {
    const cell = row.cells[column];
    const text = cell.dataset.value ?? cell.textContent.trim();
    const number = text === "" ? NaN : Number(text);
    return Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) => typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  const rows = [...table.tBodies[0].rows].sort((a, b) => (down ? -1 : 1) * compare(value(a), value(b)));
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.ariaSort = down ? "descending" : "ascending";
  table.tBodies[0].append(...rows);
}

for (const control of [...filters, $("filter-seeds")]) control.addEventListener("change", filter);
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("filters").addEventListener("reset", () => setTimeout(filter));
for (const button of document.querySelectorAll("button.sort")) button.addEventListener("click", () => sort(button));
for (const choice of document.querySelectorAll("[data-score]"))
  choice.addEventListener("change", () => {
    choice.closest(".board").querySelectorAll(".by-score").forEach((part, i) => {
      part.hidden = i !== Number(choice.value);
    });
  });

/* --- tokens */

const tables = JSON.parse($("data").textContent);

function bytes(text) {
  return Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
}

function table() {
  const one = tables[Number($("table").value)];
  if (!one.ready) {
    one.rows = new Int8Array(bytes(one.rows).buffer);
    one.norms = new Float32Array(bytes(one.norms).buffer);
    one.lengths = one.tokens.map((_, i) => Math.sqrt(dot(one, i, i)));
    one.byText = new Map();
    one.texts.forEach((text, i) => {
      if (text) one.byText.set(text, [...(one.byText.get(text) ?? []), i]);
    });
    one.longest = Math.max(...one.texts.map((text) => (text ?? "").length));
    one.ready = true;
  }
  return one;
}

function dot(one, i, j) {
  const { rows, dim } = one;
  let sum = 0;
  for (let d = 0, a = i * dim, b = j * dim; d < dim; d++) sum += rows[a + d] * rows[b + d];
  return sum;
}

/* The k nearest rows by cosine: [row, cosine], of equally near ones the first. */
function neighbours(one, i) {
  return one.tokens
    .map((_, j) => [j, dot(one, i, j) / (one.lengths[i] * one.lengths[j])])
    .filter(([j]) => j !== i)
    .sort((a, b) => b[1] - a[1] || a[0] - b[0])
    .slice(0, one.k);
}

/* The row of a text: as it is spelled, then as the start of a word, then in lower case. */
function find(one, text) {
  const spelled = one.tokens.indexOf(text);
  if (spelled >= 0) return spelled;
  for (const form of [text, text.toLowerCase()]) {
    const rows = one.byText.get(form) ?? [];
    if (rows.length) return rows.find((i) => one.starts[i] !== false) ?? rows[0];
  }
  return -1;
}

/* A word as tokens, the longest first from the left; null where a part has none. `without` is left out. */
function spell(one, word, starts, without) {
  const pieces = [];
  for (let at = 0; at < word.length;) {
    let found = -1, end = Math.min(word.length, at + one.longest);
    for (; end > at && found < 0; end--) {
      const first = starts && at === 0;
      const fits = (i) => i !== without && (one.starts[i] === null || one.starts[i] === first);
      found = (one.byText.get(word.slice(at, end)) ?? []).find(fits) ?? -1;
    }
    if (found < 0) return null;
    pieces.push(found);
    at = end + 1;
  }
  return pieces;
}

function tokenButton(one, i) {
  const button = element("button", { type: "button", className: "token", textContent: one.tokens[i] });
  button.addEventListener("click", () => {
    $("token").value = one.tokens[i];
    suggest(one, one.tokens[i]);
    show(one, i);
    $("token").focus();
  });
  return button;
}

function buttons(one, rows) {
  return element("div", { className: "pieces" }, ...rows.map((i) => tokenButton(one, i)));
}

function share(count, of) {
  return `${Math.round((100 * count) / of)}%`;
}

function facts(one, i) {
  const list = element("dl");
  const add = (name, text) => list.append(element("dt", { textContent: name }), element("dd", { textContent: text }));
  const shorter = one.norms.reduce((sum, norm) => sum + (norm < one.norms[i]), 0);
  if (one.starts[i] !== null && one.family !== "words")
    add("stands", one.starts[i] ? "at the start of a word" : "inside a word, or for a part of it");
  add("norm", `${one.norms[i].toPrecision(3)}, longer than ${share(shorter, one.tokens.length)} of the rows here`);
  if (one.counts)
    add("occurs", `${one.counts[i].toLocaleString("en")} of ${one.total.toLocaleString("en")} times in the corpus, ` +
      `place ${(i + 1).toLocaleString("en")} by frequency`);
  else add("row", `${one.rank[i].toLocaleString("en")} of the ${one.of.toLocaleString("en")} that were used`);
  return list;
}

function show(one, i) {
  const near = neighbours(one, i).map(([j, cosine]) => {
    const bar = element("div");
    bar.style.width = `${Math.max(0, 100 * cosine)}%`;
    const track = element("div", { className: "track" }, bar);
    track.setAttribute("aria-hidden", "true");
    const number = element("span", { className: "cosine", textContent: cosine.toFixed(3) });
    return element("li", {}, tokenButton(one, j), track, number);
  });
  const parts = [
    element("h3", {}, element("code", { textContent: one.tokens[i] })),
    facts(one, i),
    element("h4", { textContent: "Nearest tokens here, by cosine" }),
    element("ol", { className: "neighbours" }, ...near),
  ];
  const others = (one.byText.get(one.texts[i]) ?? []).filter((j) => j !== i);
  if (others.length)
    parts.push(element("h4", { textContent: "The same text as another token" }), buttons(one, others));
  const text = one.texts[i];
  const pieces = one.family === "words" || !text ? null : spell(one, text, one.starts[i] !== false, i);
  if (pieces && pieces.length > 1)
    parts.push(element("h4", { textContent: "Without it, spelled by" }), buttons(one, pieces), howSpelled());
  $("found").replaceChildren(...parts);
}

function howSpelled() {
  return element("p", { className: "soft", textContent:
    "The longest token here from the left each time; the tokenizer itself may split otherwise." });
}

function showNone(one, text) {
  const parts = [element("p", {}, element("code", { textContent: text }), " is not one of the tokens here.")];
  const words = one.family === "words" ? [] : text.split(/\s+/).filter(Boolean);
  const spelled = words.map((word) => spell(one, word, true, -1) ?? spell(one, word.toLowerCase(), true, -1));
  if (spelled.length && spelled.every(Boolean))
    parts.push(element("h4", { textContent: "Spelled by" }), buttons(one, spelled.flat()), howSpelled());
  $("found").replaceChildren(...parts);
}

function suggest(one, text) {
  const low = text.toLowerCase();
  const rows = [];
  for (let i = 0; low && i < one.texts.length && rows.length < 8; i++)
    if (one.texts[i]?.toLowerCase().startsWith(low) && one.tokens[i] !== text) rows.push(i);
  $("suggestions").replaceChildren(...rows.map((i) => tokenButton(one, i)));
}

function search() {
  const one = table(), text = $("token").value.trim();
  suggest(one, text);
  if (!text) return $("found").replaceChildren();
  const i = find(one, text);
  if (i >= 0) show(one, i);
  else showNone(one, text);
}

/* A word to begin with, so that there is something to see: one of five letters or more. */
function example() {
  const one = table();
  const i = one.texts.findIndex((text, i) => one.starts[i] !== false && /^[a-z]{5,}$/.test(text ?? ""));
  $("token").value = one.texts[i] ?? one.tokens[0];
  search();
}

$("search").addEventListener("submit", (event) => { event.preventDefault(); search(); });
$("token").addEventListener("input", search);
$("table").addEventListener("change", () => { if (find(table(), $("token").value.trim()) >= 0) search(); else example(); });
example();
