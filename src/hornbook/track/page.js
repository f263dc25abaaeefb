// The page of runs: curves of the runs that are shown, what the reader chose to see of them, and, on the board, what is new.
//
//   #data  {"live": false, "over": "steps", "curves": [...]}    the report of a run, or runs compared
//          {"live": true, "over": "steps", "curves": []}        the board: GET data, again and again
//
// A run's curves: {id, label, number, name, folder, objective, marks, figures, series: {key: {points, means}}, token, at}.
// `at` counts the rows of its log that the series are of; the board asks for later ones, and `token` says of which log.

const given = JSON.parse(document.getElementById("data").textContent);
const AXES = { steps: null, tokens: "train/tokens", time: "train/seconds" };
const TIMES = [[7200, 3600, "hours"], [120, 60, "minutes"], [0, 1, "seconds"]];
const SCALES = { auto: "automatic", linear: "linear", log: "logarithmic" };
const POLL_MS = 1000, TYPING_MS = 150, SMOOTHING = 5, NUM_COLORS = 8, NUM_DASHES = 3, MOST_MARKED = 60; // colors and dashes as in figures.py
const by = (id) => document.getElementById(id);

const choice = { runs: [], over: given.over, smooth: SMOOTHING, scale: "auto", logX: false, find: "", sort: "", group: "" };
const LISTED = ["find", "sort", "group"]; // of the board's list of runs
const figures = new Map();
let runs = given.curves;

// ---- the choice, kept in the URL's fragment, which also works for a file

function readChoice() {
  const found = new URLSearchParams(location.hash.slice(1));
  choice.runs = found.getAll("run");
  if (found.get("over") in AXES) choice.over = found.get("over");
  if (found.get("scale") in SCALES) choice.scale = found.get("scale");
  choice.logX = found.get("logx") === "1";
  const smoothing = Number(found.get("smooth") ?? SMOOTHING);
  if (smoothing >= 0 && smoothing <= 50) choice.smooth = smoothing;
  for (const name of LISTED) choice[name] = found.get(name) ?? "";
}

function keepChoice() {
  const kept = new URLSearchParams(choice.runs.map((id) => ["run", id]));
  if (choice.over !== given.over) kept.set("over", choice.over);
  if (choice.scale !== "auto") kept.set("scale", choice.scale);
  if (choice.logX) kept.set("logx", "1");
  if (choice.smooth !== SMOOTHING) kept.set("smooth", choice.smooth);
  for (const name of LISTED) if (choice[name]) kept.set(name, choice[name]);
  history.replaceState(null, "", `#${kept}`);
}

// ---- places on the horizontal axis

// [[step, tokens or seconds]] from the start on; where the count falls, a session that counts anew began.
function placesOf(run, key) {
  const places = [[0, 0]];
  let total = 0, before = 0;
  for (const [step, value] of run.series[key]?.points ?? []) {
    if (value === null) continue;
    if (value < before) total += before;
    before = value;
    if (step > 0) places.push([step, total + value]);
  }
  return places.length > 1 ? places : null;
}

// Place of a step, linear between known ones; null beyond the last.
function placeOf(places, step) {
  let low = 0, high = places.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (places[middle][0] < step) low = middle + 1; else high = middle;
  }
  if (low === places.length) return null;
  const [after, value] = places[low];
  if (after === step || low === 0) return value;
  const [before, start] = places[low - 1];
  return start + ((value - start) * (step - before)) / (after - before);
}

function axisOf() {
  if (choice.over === "steps") return { label: "step", exact: true, show: whole, scale: 1 };
  if (choice.over === "tokens") return { label: "tokens", exact: false, show: short, scale: 1 };
  const ends = runs.map((run) => placesOf(run, AXES.time)?.at(-1)[1] ?? 0);
  const [, scale, name] = TIMES.find(([least]) => Math.max(0, ...ends) >= least);
  return { label: `${name} of training`, exact: false, show: significant, scale };
}

function placed(run, points, over) {
  const key = AXES[choice.over], places = key ? placesOf(run, key) : null;
  if (key && !places) return [];
  return points.map(([step, y]) => [key ? placeOf(places, step) : step, y])
    .filter(([x]) => x !== null && (!choice.logX || x > 0))
    .map(([x, y]) => [x / over.scale, choice.scale === "log" && y <= 0 ? null : y]);
}

// ---- charts of one run, or of several over each other

// One run has the lines of a figure in one chart; of several runs, training and validation have a chart each.
function chartsOf() {
  const many = runs.length > 1, mixed = new Set(runs.map((run) => run.objective)).size > 1;
  const over = axisOf(), charts = new Map();
  for (const run of runs) {
    for (const figure of run.figures) {
      for (const line of figure.lines) {
        const part = many && line.label ? `, ${line.label}` : "";
        const group = mixed && figure.by_objective ? ` of ${run.objective ?? "an unknown objective"}` : "";
        const title = figure.title + part + group;
        if (!charts.has(title)) {
          const marks = many ? [] : placed(run, run.marks, over);
          charts.set(title, { ...figure, title, over, many, named: many, marks, logX: choice.logX, scale: choice.scale, lines: [] });
        }
        const style = many ? styleOf(run) : line.style;
        charts.get(title).lines.push(...linesOf(run, line, many ? nameOf(run) : line.label || figure.title.toLowerCase(), style, over));
      }
    }
  }
  for (const chart of charts.values()) chart.lines = chart.lines.filter(({ points }) => points.some(([, y]) => y !== null));
  for (const chart of charts.values()) chart.lines.sort((a, b) => Boolean(b.quiet) - Boolean(a.quiet)); // faint ones below
  return [...charts.values()].filter(({ lines }) => lines.length);
}

function styleOf(run) {
  const dashes = Math.min(NUM_DASHES, Math.floor(run.number / NUM_COLORS));
  return `run${run.number % NUM_COLORS}${dashes ? ` dash${dashes}` : ""}`;
}

// Label and folder; of folders with the same name, their paths.
function nameOf(run) {
  const isRepeated = runs.some((other) => other !== run && other.folder === run.folder);
  return `${run.label} ${isRepeated ? run.id : run.folder}`;
}

// What was logged, faint, below its smoothed curve; the line alone where there is little to smooth.
function linesOf(run, line, label, style, over) {
  const { points, means } = run.series[line.key] ?? { points: [] };
  const logged = placed(run, points, over);
  if (!line.noisy || !choice.smooth || points.length < SMOOTHED_FROM) {
    const marked = /^(?!train\/)|loss/.test(line.key) && points.length <= MOST_MARKED; // each of these was a measurement
    return [{ label, style, points: logged, marked }];
  }
  const fitted = { label, style, fitted: true, points: smooth(placed(run, means ?? points, over), choice.smooth / 100) };
  return [{ label: `${label}, logged`, style: `${style} faint`, points: logged, quiet: true }, fitted];
}

function draw() {
  const charts = chartsOf(), titles = new Set(charts.map(({ title }) => title));
  for (const [title, figure] of figures) if (!titles.has(title)) { figure.node.remove(); figures.delete(title); }
  const many = runs.length > 1, large = by("large"), small = by("small");
  for (const chart of charts) {
    if (!figures.has(chart.title)) figures.set(chart.title, new Figure());
    const { node } = figures.get(chart.title), home = chart.large && !many ? large : small;
    if (node.parentNode !== home) home.append(node);
    figures.get(chart.title).draw(chart);
  }
  for (const { title } of charts) { const { node } = figures.get(title); node.parentNode.append(node); } // in their order
  by("curves").hidden = !runs.some((run) => run.figures.length);
  by("nothing").hidden = charts.length > 0;
}

// ---- controls

const radios = (name, options) => Object.entries(options).map(([value, text]) => {
  const input = element("input", { type: "radio", name, value, ...(choice[name] === value ? { checked: "" } : {}) });
  input.addEventListener("change", () => chosen(name, value));
  return element("label", {}, input, element("span", {}, text));
});

function chosen(name, value) {
  choice[name] = value;
  keepChoice();
  draw();
}

function makeControls() {
  const over = element("fieldset", {}, element("legend", {}, "Over"), ...radios("over", { steps: "steps", tokens: "tokens", time: "time" }));
  const scale = element("fieldset", {}, element("legend", {}, "Vertical axis"), ...radios("scale", SCALES));
  const logX = element("input", { type: "checkbox", id: "logx", ...(choice.logX ? { checked: "" } : {}) });
  logX.addEventListener("change", () => chosen("logX", logX.checked));
  const range = element("input", { type: "range", id: "smooth", min: "0", max: "50", step: "1", value: choice.smooth });
  const said = element("output", { for: "smooth" });
  const say = () => { said.textContent = Number(range.value) ? `${range.value} %` : "off"; };
  range.addEventListener("input", () => { say(); chosen("smooth", Number(range.value)); });
  say();
  by("controls").replaceChildren(over, element("label", { class: "toggle" }, logX, element("span", {}, "logarithmic")), scale,
    element("label", { class: "slider" }, element("span", {}, "Smoothing"), range, said));
}

// ---- the board

const sources = new Map();
let signature = "", waiting = 0;

// Rows of a step that is logged again, after a resume, replace those before.
function added(points, more) {
  if (!more.length) return points;
  if (!points.length || more[0][0] > points[points.length - 1][0]) return [...points, ...more];
  return [...new Map([...points, ...more]).entries()].sort((a, b) => a[0] - b[0]);
}

function merge(fresh) {
  const before = new Map(runs.map((run) => [run.id, run]));
  runs = fresh.map((run) => {
    const known = before.get(run.id);
    if (!known || known.token !== run.token || run.from === 0) return run;
    const series = { ...known.series };
    for (const [key, { points }] of Object.entries(run.series)) {
      const old = series[key] ?? { points: [] };
      series[key] = { points: added(old.points, points), ...(old.means ? { means: added(old.means, points) } : {}) };
    }
    return { ...run, series };
  });
}

// Replace what changed alone, so that a selection, details that are open, the focus and the place in a list stay.
function replacePart(id, source) {
  const part = by(id);
  if (sources.get(id) === source) return;
  const open = [...part.querySelectorAll("details")].map((node) => node.open), scrolled = part.firstElementChild?.scrollTop;
  const focused = part.contains(document.activeElement) ? document.activeElement.value : undefined;
  sources.set(id, source);
  part.innerHTML = source; // made by hornbook/track/page.py, which escapes every text
  part.querySelectorAll("details").forEach((node, at) => { node.open = open[at] ?? node.open; });
  if (scrolled && part.firstElementChild) part.firstElementChild.scrollTop = scrolled;
  if (focused) [...part.querySelectorAll("input")].find((box) => box.value === focused)?.focus();
}

function show(fresh) {
  signature = fresh.signature;
  choice.runs = fresh.selected;
  document.title = fresh.title;
  for (const part of ["head", "runs", "group", "before", "after"]) replacePart(part, fresh.parts[part]);
  by("group").value = choice.group;
  for (const box of by("runs").querySelectorAll("input")) box.checked = choice.runs.includes(box.value);
  merge(fresh.curves);
  draw();
}

async function poll() {
  clearTimeout(waiting);
  const began = performance.now();
  const asked = new URLSearchParams([["have", signature], ...LISTED.map((name) => [name, choice[name]])]);
  const wants = () => JSON.stringify([choice.runs, ...LISTED.map((name) => choice[name])]), wanted = wants();
  const known = new Map(runs.map((run) => [run.id, run]));
  for (const id of choice.runs) {
    const run = known.get(id);
    asked.append("run", id);
    asked.append("seen", run ? `${run.token}.${run.at}` : "");
    asked.append("style", run?.number ?? "");
  }
  try {
    const response = await fetch(`data?${asked}`, { cache: "no-store" });
    if (response.status === 403) return lost("this server wants its token: open the address that it printed");
    if (!response.ok) throw new Error(response.status);
    const fresh = await response.json();
    const isStale = wants() !== wanted; // the reader has chosen others meanwhile
    if (fresh.signature !== signature && !isStale) show(fresh);
    by("status").className = "live";
    by("status").textContent = "live";
    waiting = setTimeout(poll, isStale ? 0 : Math.max(POLL_MS, 5 * (performance.now() - began))); // leaves the machine its time
  } catch {
    lost("no answer from hornbook runs serve; trying again");
  }
}

function lost(reason) {
  by("status").className = "lost";
  by("status").textContent = reason;
  waiting = setTimeout(poll, POLL_MS);
}

function startBoard() {
  by("runs").addEventListener("change", (event) => {
    const { value, checked } = event.target;
    choice.runs = checked ? [...choice.runs, value] : choice.runs.filter((id) => id !== value);
    signature = "";
    keepChoice();
    poll();
  });
  const showChoice = () => { for (const name of LISTED) by(name).value = choice[name]; };
  for (const name of LISTED) by(name).addEventListener("input", () => {
    choice[name] = by(name).value;
    keepChoice();
    clearTimeout(waiting);
    waiting = setTimeout(poll, name === "find" ? TYPING_MS : 0);
  });
  by("find").form.addEventListener("submit", (event) => event.preventDefault());
  showChoice();
  window.addEventListener("hashchange", () => { readChoice(); signature = ""; showChoice(); makeControls(); poll(); });
  document.addEventListener("visibilitychange", () => { if (document.visibilityState === "visible") poll(); });
  poll();
}

readChoice();
if (by("curves")) makeControls();
if (given.live) startBoard(); else if (by("curves")) draw();
