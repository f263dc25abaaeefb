// Line charts: a stretched SVG for the lines, HTML for the labels, a probe that follows the pointer or the arrow keys.
//
//   points [[step, value | null], ...] -> place on the x axis -> smooth -> decimate -> <path d="M0 812L1 790...">
//
// Every text is set as text, never as markup.

const WIDTH = 1000, HEIGHT = 500, MAX_DRAWN = 1500, SMOOTHED_FROM = 40, LOG_FROM = 2.5, LARGEST = 1e100;
const SVG = "http://www.w3.org/2000/svg";
const LOG_MANTISSAS = [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7],
  Array.from({ length: 18 }, (_, at) => 1 + at / 2)];

const element = (name, attributes = {}, ...children) => filled(document.createElement(name), attributes, children);
const drawn = (name, attributes = {}, ...children) => filled(document.createElementNS(SVG, name), attributes, children);

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// ---- numbers, written as hornbook/track/units.py writes them

const SUFFIXES = [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]];
const whole = (value) => Math.round(value).toLocaleString("en-US");
const exponent = (value, digits) => value.toExponential(digits).replace(/e([+-])(\d)$/, "e$10$2");

function significant(value, digits = 3) {
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1000) return String(value);
  if (size < 1e-3 || size >= 1e15) return exponent(value, digits - 1);
  return value.toFixed(Math.max(0, digits - 1 - Math.floor(Math.log10(size))));
}

function short(value) {
  const found = SUFFIXES.find(([scale]) => Math.abs(value) >= scale);
  return found ? significant(value / found[0]) + found[1] : significant(value);
}

function tickText(value) {
  const [scale, suffix] = SUFFIXES.find(([least]) => Math.abs(value) >= least) ?? [1, ""];
  const scaled = Number((value / scale).toPrecision(4)), size = Math.abs(scaled);
  if (scaled === 0 || (size >= 1e-4 && size < 1e4)) return String(scaled) + suffix;
  return exponent(scaled, 3).replace(/\.?0+e/, "e") + suffix;
}

// ---- axes

class Axis {
  constructor(low, high, logarithmic) { Object.assign(this, { low, high, logarithmic }); }

  place(value) {
    const at = Math.min(Math.max(value, this.low), this.high);
    return this.logarithmic ? Math.log(at / this.low) / Math.log(this.high / this.low)
      : (at - this.low) / (this.high - this.low);
  }

  value(share) {
    return this.logarithmic ? this.low * (this.high / this.low) ** share : this.low + share * (this.high - this.low);
  }

  ticks(wanted) { return this.logarithmic ? logTicks(this.low, this.high, wanted) : evenTicks(this.low, this.high, wanted); }
}

function evenTicks(low, high, wanted) {
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => power * factor >= rough * (1 - 1e-9));
  const ticks = [];
  for (let at = Math.ceil(low / step - 1e-9); at <= Math.floor(high / step + 1e-9); at++) ticks.push(at * step);
  return ticks;
}

function logTicks(low, high, wanted) {
  const powers = [], inside = (value) => low <= value && value <= high;
  for (let at = Math.floor(Math.log10(low)); at <= Math.ceil(Math.log10(high)); at++) powers.push(10 ** at);
  if (powers.length > wanted + 2) {
    const stride = Math.ceil(powers.length / wanted);
    return powers.filter((power, at) => at % stride === 0 && inside(power));
  }
  const choices = LOG_MANTISSAS.map((all) => powers.flatMap((power) => all.map((one) => one * power)).filter(inside));
  const distance = (ticks) => Math.abs(ticks.length - wanted);
  return choices.reduce((best, ticks) => (distance(ticks) < distance(best) ? ticks : best));
}

function extremes(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
  return [low, high];
}

// From zero where the points begin near it; with room at both ends if all of them are at one place.
function xAxis(lines, logarithmic) {
  let [low, high] = extremes(lines.flatMap(({ points }) => points.map(([x]) => x)));
  if (logarithmic) return high > low ? new Axis(low, high, true) : new Axis(low / 2, low * 2, true);
  if (low > 0 && low < 0.1 * high) low = 0;
  return high > low ? new Axis(low, high, false) : new Axis(low - 1, high + 1, false);
}

// `scale`: "linear", "log", or "auto", which is logarithmic where the values span more than a factor of LOG_FROM.
function yAxis(lines, zero, scale) {
  let [low, high] = extremes(lines.flatMap(({ points }) => points.map(([, y]) => y).filter((y) => y !== null)));
  if (scale === "log" || (scale === "auto" && !zero && low > 1e-100 && high / low > LOG_FROM)) {
    const margin = high > low ? (high / low) ** 0.04 : 2;
    return new Axis(low / margin, high * margin, true);
  }
  if (zero) low = Math.min(low, 0);
  const margin = high - low > 1e-100 ? (high - low) * 0.06 : Math.abs(high) * 0.1 || 1;
  return new Axis(zero && low === 0 ? 0 : low - margin, high + margin, false);
}

// ---- points

// At each point, the line that fits its neighbors best (local regression, Cleveland 1979); they are `share` of all.
// Sums from the start on give each fit in constant time. Null values count for nothing and stay where they are.
// A fit stays between the least and the greatest value: the end of a spike would carry a line below zero.
function smooth(points, share) {
  const known = points.filter(([, y]) => y !== null), n = known.length;
  const reach = Math.max(1, Math.round((n * share) / 2)), origin = n ? known[0][0] : 0;
  const [low, high] = extremes(known.map(([, y]) => y)), sums = [[0, 0, 0, 0]];
  for (const [place, y] of known) {
    const x = place - origin, last = sums[sums.length - 1];
    sums.push([last[0] + x, last[1] + y, last[2] + x * x, last[3] + x * y]);
  }
  let at = 0;
  return points.map(([place, y]) => {
    if (y === null) return [place, null];
    const half = Math.min(reach, at), start = Math.max(0, Math.min(at - half, n - 2 * half - 1));
    const end = Math.min(n, start + 2 * half + 1), count = end - start;
    const [sx, sy, sxx, sxy] = sums[end].map((sum, column) => sum - sums[start][column]);
    at += 1;
    const spread = sxx - (sx * sx) / count;
    const slope = spread > 1e-9 * sxx ? (sxy - (sx * sy) / count) / spread : 0;
    return [place, Math.min(high, Math.max(low, sy / count + slope * (place - origin - sx / count)))];
  });
}

// Of each slice, its least and its greatest value: a spike of one step survives.
function decimate(points) {
  if (points.length <= MAX_DRAWN) return points;
  const kept = [points[0]], slices = (MAX_DRAWN - 2) / 2, inner = points.length - 2;
  for (let part = 0; part < slices; part++) {
    const piece = points.slice(1 + Math.floor((part * inner) / slices), 1 + Math.floor(((part + 1) * inner) / slices));
    const values = piece.filter(([, y]) => y !== null);
    if (!values.length) { kept.push(piece[0]); continue; }
    const least = values.reduce((a, b) => (b[1] < a[1] ? b : a)), most = values.reduce((a, b) => (b[1] > a[1] ? b : a));
    kept.push(...(least === most ? [least] : [least, most].sort((a, b) => a[0] - b[0])));
  }
  return [...kept, points[points.length - 1]];
}

function nearest(points, x) {
  let low = 0, high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle + 1; else high = middle;
  }
  return low > 0 && x - points[low - 1][0] <= points[low][0] - x ? points[low - 1] : points[low];
}

// ---- figures

// A chart that is drawn again as its data grow. `draw` takes
//   {title, unit, zero, short, marks: [[x, text]], over: {label, exact, show}, logX, scale,
//    lines: [{label, style, points, fitted, marked, quiet}]}
// where a `fitted` line has a value at any place, a `marked` one has a dot at each point, and a `quiet` one is not in the
// legend and, with `many` runs, not probed.
class Figure {
  constructor() {
    this.node = element("figure");
    this.plot = element("div", { class: "plot", tabindex: "0" });
    this.caption = element("figcaption");
    this.below = element("p", { class: "x" });
    this.node.append(this.caption, this.plot, this.below);
    this.share = null;
    const move = (event) => {
      const box = this.plot.getBoundingClientRect();
      this.probe(Math.min(1, Math.max(0, (event.clientX - box.left) / box.width)));
    };
    this.plot.addEventListener("pointermove", move);
    this.plot.addEventListener("pointerdown", move);
    this.plot.addEventListener("pointerleave", () => this.probe(null));
    this.plot.addEventListener("blur", () => this.probe(null));
    this.plot.addEventListener("keydown", (event) => this.step(event));
  }

  draw(chart) {
    this.chart = chart;
    this.probed = chart.lines.filter((line) => !line.quiet || !chart.many)
      .map((line) => ({ ...line, all: line.points, points: line.points.filter(([, y]) => y !== null) })).filter((line) => line.points.length);
    const x = (this.x = xAxis(chart.lines, chart.logX)), y = (this.y = yAxis(chart.lines, chart.zero, chart.scale));
    const [first, last] = extremes(chart.lines.flatMap(({ points }) => points.map(([at]) => at))), up = y.ticks(5);
    const ticks = x.ticks(5).filter((tick) => !chart.over.exact || Number.isInteger(tick));
    const free = Math.min(0.87, 1 - 80 / Math.max(this.plot.clientWidth, 320)); // the end is always named
    const across = first < last ? [...ticks.filter((tick) => x.place(tick) < free), last] : ticks;
    const marks = chart.marks.filter(([at]) => x.low <= at && at <= x.high);
    const unit = chart.unit + (y.logarithmic ? ", logarithmic" : "");
    this.caption.replaceChildren(
      element("h3", {}, chart.title), element("span", { class: "unit" }, unit), this.legend(marks));
    const room = Math.max(0, ...up.map((tick) => tickText(tick).length));
    this.plot.style.marginLeft = `max(3.1rem, ${(0.8 * room).toFixed(1)}ch + .7rem)`;
    const layers = [...this.grid(across, up), this.lines(marks)];
    this.cursor = element("div", { class: "cursor", "aria-hidden": "true" });
    this.plot.replaceChildren(...layers, this.cursor);
    this.below.textContent = chart.over.label + (x.logarithmic ? ", logarithmic" : "");
    this.probe(this.share);
  }

  legend(marks) {
    const named = this.chart.lines.filter((line) => !line.quiet);
    if (named.length < 2 && !this.chart.named) return "";
    const items = named.map((line) => element("li", { class: line.style }, line.label));
    return element("ul", {}, ...items, ...marks.slice(0, 1).map(([, text]) => element("li", { class: "mark" }, text)));
  }

  grid(across, up) {
    const at = (name, side, share, ...text) => {
      const node = element(text.length ? "span" : "i", { class: name }, ...text);
      node.style[side] = `${(100 * share).toFixed(2)}%`;
      return node;
    };
    const places = across.map((tick) => [this.x.place(tick), tickText(tick)]);
    const heights = up.map((tick) => [this.y.place(tick), tickText(tick)]);
    const hidden = { "aria-hidden": "true" };
    return [
      element("div", { class: "grid", ...hidden }, ...heights.map(([share]) => at("gy", "bottom", share)),
        ...places.map(([share]) => at("gx", "left", share))),
      element("div", { class: "labels", ...hidden }, ...heights.map(([share, text]) => at("ly", "bottom", share, text)),
        ...places.map(([share, text]) => at(share > 0.96 ? "lx end" : "lx", "left", share, text))),
    ];
  }

  lines(marks) {
    const cuts = marks.map(([at]) => drawn("path", { d: `M${(this.x.place(at) * WIDTH).toFixed(1)} 0V${HEIGHT}`, class: "mark" }));
    const view = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": this.described() };
    return drawn("svg", view, ...cuts, ...this.chart.lines.flatMap((line) => this.path(line)));
  }

  // A path for the line, and one for points between two gaps: lines of no length, which a round cap makes dots.
  path({ points, style, marked }) {
    const lines = [], dots = [];
    let moves = [];
    const end = () => {
      if (moves.length === 1) dots.push(`M${moves[0]}h0`); else if (moves.length) lines.push(`M${moves.join("L")}`);
      moves = [];
    };
    for (const [x, y] of decimate(points)) {
      if (y === null) end();
      else moves.push(`${(this.x.place(x) * WIDTH).toFixed(1)} ${((1 - this.y.place(y)) * HEIGHT).toFixed(1)}`);
    }
    end();
    if (marked) dots.push(...lines.flatMap((found) => found.slice(1).split("L").map((place) => `M${place}h0`)));
    const lone = lines.length || marked || dots.length > 1 ? "" : " lone";
    return [[lines, style], [dots, `${style} dot${lone}`]].filter(([found]) => found.length)
      .map(([found, name]) => drawn("path", { d: found.join(""), class: name }));
  }

  // The chart in words, for those who hear the page.
  described() {
    const said = this.probed.map(({ label, points }) => {
      const [least] = extremes(points.map(([, y]) => y));
      return `${label}: first ${significant(points[0][1])}, last ${significant(points[points.length - 1][1])}, least ${significant(least)}`;
    });
    return `${this.chart.title} over ${this.chart.over.label}. ${said.join("; ")}.`;
  }

  // Arrow keys move the probe, from point to point.
  step(event) {
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!direction) return;
    event.preventDefault();
    const places = [...new Set(this.probed.flatMap(({ points }) => points.map(([x]) => x)))].sort((a, b) => a - b);
    const here = this.at ?? (direction > 0 ? -Infinity : Infinity);
    const next = direction > 0 ? places.find((x) => x > here) : places.findLast((x) => x < here);
    if (next !== undefined) this.probe(this.x.place(next));
  }

  // Show what was measured near a share of the width; null hides it. The rarest line that has a point there decides the
  // place, so that each validation among many steps can be found.
  probe(share) {
    this.share = share;
    this.at = null;
    this.cursor.replaceChildren();
    if (share === null || !this.probed.length) return;
    const distance = ([x]) => Math.abs(this.x.place(x) - share);
    const near = [...this.probed].sort((a, b) => a.points.length - b.points.length)
      .map(({ points }) => nearest(points, this.x.value(share)));
    const [at] = near.find((point) => distance(point) < 0.006) ?? near.reduce((a, b) => (distance(b) < distance(a) ? b : a));
    this.at = at;
    const values = this.probed.map((line) => [line, this.valueNear(line, at)]).filter(([, point]) => point);
    const write = this.chart.short ? short : (value) => significant(value, 4);
    const place = (node, x, y) => {
      node.style.left = `${100 * this.x.place(x)}%`;
      if (y !== undefined) node.style.bottom = `${100 * this.y.place(y)}%`;
      return node;
    };
    const rows = values.map(([line, [, y, isBetween]]) => element("li", { class: line.style },
      ...(this.probed.length > 1 ? [element("em", {}, line.label)] : []),
      element("b", {}, (isBetween && !line.fitted ? "\u2248 " : "") + write(y))));
    const box = element("ul", { class: this.x.place(at) > 0.5 ? "left" : "right" },
      element("li", { class: "place" }, `${this.chart.over.label} ${this.chart.over.show(at)}`), ...rows);
    this.cursor.append(place(element("s"), at), ...values.map(([line, [x, y]]) => place(element("i", { class: line.style }), x, y)), place(box, at));
  }

  // [x, y, whether it is between two points]. What one run logged is shown at its own place alone; of several runs, and
  // of a fitted line, the place on the drawn line, which is straight between two points and does not cross a gap.
  valueNear(line, at) {
    const point = nearest(line.points, at);
    if (!line.fitted && !this.chart.many) {
      const reach = this.chart.over.exact ? 0 : (this.x.high - this.x.low) / 200;
      return Math.abs(point[0] - at) <= reach ? [...point, false] : null;
    }
    if (point[0] === at) return [...point, false];
    const after = line.all.findIndex(([x]) => x > at), [high, low] = [line.all[after], line.all[after - 1]];
    if (!high || !low || high[1] === null || low[1] === null) return null;
    const [start, here, end] = [low[0], at, high[0]].map((x) => this.x.place(x));
    const [from, to] = [low[1], high[1]].map((y) => this.y.place(y));
    return [at, this.y.value(from + ((to - from) * (here - start)) / (end - start)), true];
  }
}
