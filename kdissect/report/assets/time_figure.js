"use strict";
// The figure of time: lanes above each other that share one axis with round ticks, drawn by hand.

const ROUND = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5]; // ms between two ticks
const ROOM_OF_TICK = 120;
const FLUSH = 42; // pixels from either end within which a label is aligned to its tick, as in the charts
// Pixels left and right of what is drawn over time, in this figure and in all charts with an axis of time.
function margins() {
  return { left: window.innerWidth < 700 ? 74 : 92, right: 16 };
}
// The round times between two instants (ms) for an axis so wide.
function roundTicks(from, to, width) {
  const apart = ROUND.find((one) => (to - from) / one <= Math.max(1, width / ROOM_OF_TICK)) || ROUND[ROUND.length - 1];
  const ticks = [];
  for (let at = Math.ceil(from / apart) * apart; at <= to; at += apart) ticks.push(at);
  return { ticks, apart };
}
function tickText(at, apart) {
  const text = new Date(at).toISOString();
  return apart >= 864e5 ? text.slice(0, 10) : text.slice(11, apart < 1000 ? 23 : 19);
}
// A line through points (x, y) that breaks where `apart` says that two of them are no neighbours.
function brokenLine(points, apart) {
  return points.map((one, i) => `${i === 0 || apart(points[i - 1], one) ? "M" : "L"}${one.x.toFixed(1)},${one.y.toFixed(1)}`).join("");
}

function svgElement(name, attributes, parent, title) {
  const one = document.createElementNS("http://www.w3.org/2000/svg", name);
  Object.entries(attributes).forEach(([key, value]) => one.setAttribute(key, value));
  if (title) svgElement("title", {}, one).textContent = title;
  if (parent) parent.append(one);
  return one;
}

const OWNERS = ["waited as asked", "broker", "unknown", "queued", "transfer"];
const BANDS = 6;
const DOTS = 60; // of the slowest exchanges, and of those with an error
const LONGEST_TIERS = 4; // lanes of transactions above each other

// Draws the figure into `box`. `rows`: gives the rows of a figure; `span`: what is chosen, or null; `words`: colours by
// word; `seconds`: writes a duration in ms; `choose`: called with the row of a dot that is clicked.
function drawTimeFigure({ box, rows, from, to, step, span, words, seconds, choose }) {
  const axis = rows("time-axis");
  const width = Math.max(260, box.clientWidth);
  const { left, right } = margins();
  const inner = width - left - right;
  const x = (time) => left + ((time - from) / (to - from)) * inner;
  const clipped = (begin, end) => {
    const a = Math.max(left, x(begin));
    return { x: a, width: Math.max(0, Math.min(left + inner, x(end)) - a) };
  };
  const svg = svgElement("svg", { width, role: "img", "aria-labelledby": "time-axis-title" });
  const grid = svgElement("g", {}, svg);
  let top = 2;
  const label = (text, y) => {
    const most = Math.floor((left - 8) / 7);
    const one = svgElement("text", { class: "lane", x: left - 8, y, "text-anchor": "end" }, svg, text);
    one.append(text.length > most ? text.slice(0, most - 1) + "…" : text);
  };

  // Findings as bands.
  const bands = rows("findings").filter((row) => row.first_at !== null && row.severity !== "info").slice(0, BANDS);
  if (bands.length) label("findings", top + 8);
  for (const row of bands) {
    const at = clipped(row.first_at, row.last_at === null ? row.first_at : row.last_at);
    svgElement("rect", { class: "band " + row.severity, x: at.x, y: top, height: 7, rx: 2, width: Math.max(4, at.width) }, svg, row.headline || row.text);
    top += 10;
  }
  top += bands.length ? 6 : 0;

  // Latency: how many exchanges took how long, with the slowest ones and errors as dots.
  const cells = new Map();
  for (const row of rows("heat")) {
    if (row.series !== "") continue;
    const id = row.at + "/" + row.from_ms;
    const one = cells.get(id) || { ...row, exchanges: 0 };
    one.exchanges += row.exchanges;
    cells.set(id, one);
  }
  const dots = [];
  if (cells.size) {
    const tall = 110;
    const low = Math.log10(Math.min(...[...cells.values()].map((one) => one.from_ms)));
    const high = Math.log10(Math.max(...[...cells.values()].map((one) => one.to_ms)));
    const y = (ms) => top + tall - ((Math.min(high, Math.max(low, Math.log10(Math.max(ms, 1e-6)))) - low) / Math.max(0.1, high - low)) * tall;
    const most = Math.log10(1 + Math.max(...[...cells.values()].map((one) => one.exchanges)));
    for (const one of cells.values()) {
      const at = clipped(one.at, one.until);
      svgElement("rect", { class: "cell", x: at.x, width: Math.max(1, at.width), y: y(one.to_ms), height: Math.max(1, y(one.from_ms) - y(one.to_ms)), "fill-opacity": (0.12 + (0.88 * Math.log10(1 + one.exchanges)) / most).toFixed(2) }, svg, `${one.exchanges} exchanges took ${seconds(one.from_ms)} to ${seconds(one.to_ms)}`);
    }
    label("latency", top + 12);
    for (let power = Math.ceil(low); power <= high; power++) {
      if (10 ** power > 10 ** high / 1.5 || (power - Math.ceil(low)) % 2) continue;
      svgElement("text", { class: "lane", x: left - 8, y: y(10 ** power) + 4, "text-anchor": "end" }, svg).textContent = seconds(10 ** power);
    }
    const seen = new Map();
    rows("failures").slice(0, DOTS).forEach((row) => seen.set(row.exchange_id, { ...row, wrong: true }));
    rows("outliers").slice(0, DOTS).forEach((row) => seen.set(row.exchange_id, { ...seen.get(row.exchange_id), ...row }));
    for (const row of seen.values()) {
      const took = row.slow_ms || row.latency_ms;
      if (row.at !== null) dots.push({ row, x: Math.max(left, Math.min(left + inner, x(row.at))), y: took === null ? top + tall : y(took) });
    }
    top += tall + 10;
  }

  // Exchanges and errors, then whose time it was. Where there is nothing, no bar stands.
  const bar = Math.max(1, (step / (to - from)) * inner - 1);
  const most = Math.max(...axis.map((row) => row.exchanges));
  const longest = Math.max(...axis.map((row) => OWNERS.reduce((sum, owner) => sum + row[owner], 0)), 1e-9);
  label("exchanges", top + 26);
  label("time", top + 80);
  for (const row of axis) {
    const place = x(row.at);
    const high = (row.exchanges / most) * 36;
    svgElement("rect", { x: place, y: top + 36 - high, width: bar, height: high, fill: words.created }, svg);
    if (row.errors) {
      const wrong = Math.max(3, (row.errors / most) * 36);
      svgElement("rect", { class: "wrong", x: place, y: top + 36 - wrong, width: bar, height: wrong, fill: words.error }, svg, `${row.errors} errors`);
    }
    let below = top + 94;
    for (const owner of OWNERS) {
      const part = (row[owner] / longest) * 50;
      below -= part;
      if (part > 0) svgElement("rect", { x: place, y: below, width: bar, height: part, fill: words[owner] }, svg);
    }
    if (row.resent) svgElement("rect", { class: "resent", x: place, y: top + 97, width: Math.max(3, bar), height: 4, fill: words.resent }, svg, `${row.resent} exchanges with bytes sent again`);
  }
  top += 110;

  // How long records took to their readers: the median and the slowest of each stretch.
  const delivered = rows("deliveries");
  if (delivered.length) {
    const tall = 40;
    const least = Math.log10(Math.max(0.1, Math.min(...delivered.map((row) => row.p50_ms))));
    const high = Math.max(least + 0.5, Math.log10(Math.max(...delivered.map((row) => row.max_ms), 1)));
    const y = (ms) => top + tall - ((Math.log10(Math.max(ms, 10 ** least)) - least) / (high - least)) * tall;
    const apart = (a, b) => b.row.at - a.row.at > 1.5 * (a.row.until - a.row.at);
    for (const [column, colour] of [["p50_ms", words.p50], ["max_ms", words.max]]) {
      const points = delivered.map((row) => ({ x: (x(row.at) + x(row.until)) / 2, y: y(row[column]), row }));
      svgElement("path", { class: "delivered", d: brokenLine(points, apart), stroke: colour }, svg);
    }
    for (const row of delivered) {
      svgElement("circle", { class: "delivered", cx: (x(row.at) + x(row.until)) / 2, cy: y(row.max_ms), r: 2.5, fill: words.max }, svg,
        `${row.deliveries} deliveries, median ${seconds(row.p50_ms)}, the slowest ${seconds(row.max_ms)}: ${row.topic} to ${row.client_id}, waited for ${row.waited_for}`);
    }
    label("deliveries", top + 12);
    label(`to ${seconds(10 ** high)}`, top + 28);
    top += tall + 10;
  }

  // Transactions, in as many tiers as lie above each other.
  const tiers = [];
  const transactions = rows("transactions");
  for (const row of transactions) {
    let tier = tiers.findIndex((until) => until <= row.at);
    if (tier < 0) tier = tiers.length < LONGEST_TIERS ? tiers.push(0) - 1 : tiers.indexOf(Math.min(...tiers));
    tiers[tier] = row.until;
    const at = clipped(row.at, row.until);
    svgElement("rect", { class: "transaction", x: at.x, width: Math.max(2, at.width), y: top + tier * 9, height: 7, rx: 2, fill: words[row.outcome] || words.unknown }, svg,
      `transaction ${row.transactional_id || "(unknown)"} of ${row.client_id || "(unknown)"}: ${row.outcome || "its end is not known"}, ${seconds(row.open_ms === null ? row.until - row.at : row.open_ms)}`);
  }
  if (tiers.length) {
    label("transactions", top + 8);
    top += tiers.length * 9 + 8;
  }

  // Who was there: a bar; idle: a thin line; silent or stalled: red; gone: a dashed line.
  let lane = "";
  top -= 14;
  for (const row of rows("presence")) {
    const name = `${row.by}/${row.subject}/${row.client_ip}`;
    if (name !== lane) {
      lane = name;
      top += 14;
      label(row.by === "broker" ? `broker ${row.subject}` : row.subject, top + 9);
    }
    const at = clipped(row.at, row.until);
    const thin = row.state === "idle" || row.state === "gone";
    const said = { there: "", idle: "nothing was asked", silent: "silent", stalled: "answered nobody", gone: "no connection was open" }[row.state];
    svgElement("rect", { class: `presence ${row.state} ${row.by}`, x: at.x, width: Math.max(1, at.width), y: top + (thin ? 5 : 2), height: thin ? 2 : 8 }, svg,
      said && `${row.subject}: ${said} for ${seconds(row.until - row.at)}`);
  }
  top += 18;

  // The axis.
  const { ticks, apart } = roundTicks(from, to, inner);
  for (const at of ticks) {
    const place = x(at);
    svgElement("line", { class: "grid", x1: place, x2: place, y1: 0, y2: top + 4 }, grid);
    svgElement("text", { x: place, y: top + 16, class: "tick", "text-anchor": place < left + FLUSH ? "start" : place > left + inner - FLUSH ? "end" : "middle" }, svg).textContent = tickText(at, apart);
  }
  if (span) svgElement("rect", { class: "brush", x: x(span[0]), y: 0, width: Math.max(2, x(span[1]) - x(span[0])), height: top }, svg);
  svg.setAttribute("height", top + 22);
  svg.setAttribute("viewBox", `0 0 ${width} ${top + 22}`);
  box.replaceChildren(svg, dotsOver(dots, seconds, choose));
  return { most, longest };
}

// Dots as buttons over the drawing: one of them takes part in the order of the tab key, arrows go from one to the next.
function dotsOver(dots, seconds, choose) {
  const group = document.createElement("div");
  group.className = "dots";
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", "Slowest exchanges and errors in order of time; arrow keys go from one to the next");
  dots.sort((a, b) => a.row.at - b.row.at);
  const buttons = dots.map(({ row, x, y }, i) => {
    const one = document.createElement("button");
    one.type = "button";
    one.className = row.wrong ? "dot wrong" : "dot";
    one.style.left = `${x}px`;
    one.style.top = `${y}px`;
    one.tabIndex = i ? -1 : 0;
    one.dataset.dot = row.exchange_id;
    const said = `${row.at_text.slice(11, 23)} ${row.api || "?"}${row.client_id ? " of " + row.client_id : ""}${row.latency_ms === null ? "" : ", took " + seconds(row.latency_ms)}${row.slow_ms ? ", slow by " + seconds(row.slow_ms) : ""}${row.error ? ", " + row.error : ""}`;
    one.title = said;
    one.setAttribute("aria-label", said);
    one.addEventListener("click", () => choose(row));
    return one;
  });
  group.addEventListener("keydown", (event) => {
    const to = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const at = buttons.indexOf(document.activeElement);
    if (!to || at < 0) return;
    event.preventDefault();
    const next = buttons[Math.max(0, Math.min(buttons.length - 1, at + to))];
    buttons[at].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  });
  group.append(...buttons);
  return group;
}
