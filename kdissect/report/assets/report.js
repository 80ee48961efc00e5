(async () => {
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const $ = (selector, root = document) => root.querySelector(selector);
  // What is compressed: the rows, and the charts' library, which the policy knows by its hash.
  async function unpacked(id) {
    const bytes = Uint8Array.from(atob($(id).textContent), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text();
  }
  const packed = JSON.parse(await unpacked("#data"));
  const library = document.createElement("script");
  library.textContent = await unpacked("#library");
  document.head.append(library);
  const island = packed.figures;
  for (const one of Object.values(island)) {
    one.values = one.values.map((column) => (Array.isArray(column) ? column : column.at.map((place) => column.of[place])));
  }
  const charts = packed.charts;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const NONE = "(none)";

  // Rows of a figure as objects, made once: times in milliseconds, and in words as <name>_text.
  const made = {};
  function rows(name) {
    if (made[name]) return made[name];
    const { names, kinds, values } = island[name];
    const count = values.length ? values[0].length : 0;
    return (made[name] = Array.from({ length: count }, (_, i) => {
      const row = {};
      names.forEach((column, c) => {
        const value = values[c][i];
        row[column] = kinds[c] === "time" && value !== null ? value / 1000 : value;
        if (kinds[c] === "time") row[column + "_text"] = instant(value).replace("T", " ");
      });
      return row;
    }));
  }

  function instant(microseconds) {
    if (microseconds === null) return "";
    const whole = Math.floor(microseconds / 1000);
    const rest = String(microseconds - whole * 1000).padStart(3, "0");
    return new Date(whole).toISOString().replace("Z", rest + "Z");
  }

  // CSV, RFC 4180. A text that a spreadsheet would take for a formula gets an apostrophe in front.
  function cell(value, kind) {
    if (value === null) return "";
    if (kind === "time") return instant(value);
    let text = String(value);
    if (kind === "text" && /^[=+\-@\t\r]/.test(text)) text = "'" + text;
    return /[",\r\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  }
  function csv(name) {
    const { names, kinds, values } = island[name];
    const count = values.length ? values[0].length : 0;
    const lines = [names.join(",")];
    for (let i = 0; i < count; i++) lines.push(values.map((column, c) => cell(column[i], kinds[c])).join(","));
    return lines.join("\r\n") + "\r\n";
  }
  function download(name) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(name)], { type: "text/csv" }));
    link.download = name + ".csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    say(name + ".csv downloaded");
  }

  function say(text) {
    $("#said").textContent = text;
  }
  async function copy(text, button) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    say("copied: " + text);
    if (button.tagName === "BUTTON") {
      const before = button.textContent;
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = before), 1200);
    }
  }

  // Colours by word, the same in every chart.
  const LIGHT = {
    resent: "#8a3ab9",
    p50: "#7fb3e6", p90: "#3b82c4", p99: "#8a5300", max: "#b42318",
    "waited as asked": "#c3cbd5", "until data came": "#9cc3e8", "beyond what was asked": "#c8321f", broker: "#e58a2b",
    replication: "#2a9d8f", rebalance: "#8d6e53", throttled: "#8e5cc2", queued: "#d9b310",
    network: "#3a7ca5", transfer: "#5b9a3c", agreed: "#c3cbd5", own: "#5b9a3c", idle: "#e6eaef",
    timeout: "#c3cbd5", data: "#9cc3e8", immediate: "#e58a2b", error: "#c8321f", unknown: "#7b8794",
    closed: "#5b9a3c", replaced: "#3b82c4", empty: "#9aa5b1", evicted: "#c8321f", open: "#e5a82b",
    committed: "#5b9a3c", aborted: "#e58a2b", timed_out: "#c8321f", fenced: "#8e5cc2",
    created: "#3b82c4", continued: "#5b9a3c", evicted_or_unknown: "#c8321f", epoch_error: "#8e5cc2",
    topic_id_error: "#8d6e53", refused: "#e58a2b", "epoch errors": "#8e5cc2",
  };
  const DARK = {
    ...LIGHT, resent: "#d59bf6", p50: "#4a7fb5", p90: "#6db3ff", p99: "#ffcf80", max: "#ff7a6b", "waited as asked": "#566372",
    timeout: "#566372", "until data came": "#4a7fb5", data: "#4a7fb5", "beyond what was asked": "#ff6b57",
    evicted: "#ff6b57", evicted_or_unknown: "#ff6b57", error: "#ff6b57", throttled: "#b48ae0", epoch_error: "#b48ae0",
    "epoch errors": "#b48ae0", agreed: "#566372", own: "#7cc05a", committed: "#7cc05a", timed_out: "#ff6b57", idle: "#2b3642", closed: "#7cc05a", continued: "#7cc05a", transfer: "#7cc05a", created: "#6db3ff",
    replaced: "#6db3ff", empty: "#7b8794", rebalance: "#b99473", topic_id_error: "#b99473", replication: "#3fc1b0",
  };
  const MANY = ["#3b82c4", "#e58a2b", "#2a9d8f", "#8e5cc2", "#c8321f", "#d9b310", "#5b9a3c", "#8d6e53", "#d16ba5", "#7b8794"];

  function theme() {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink").trim();
    const soft = style.getPropertyValue("--soft").trim();
    const line = style.getPropertyValue("--line").trim();
    return {
      background: "transparent",
      font: "system-ui, sans-serif",
      view: { stroke: "transparent" },
      title: { color: soft, fontSize: 12, fontWeight: "normal", offset: 4 },
      axis: {
        labelColor: soft, titleColor: soft, gridColor: line, domainColor: line, tickColor: line, labelFontSize: 12,
        titleFontSize: 12, titleFontWeight: "normal", labelLimit: window.innerWidth < 700 ? 180 : 260,
      },
      legend: { labelColor: ink, titleColor: soft, labelFontSize: 12, titleFontWeight: "normal", labelLimit: 180, symbolLimit: 0 },
      rule: { color: soft },
      line: { color: soft },
      mark: { color: dark.matches ? "#6db3ff" : "#3b82c4" },
      range: {
        category: MANY,
        ramp: dark.matches ? ["#1d3a57", "#2f6ea8", "#6db3ff", "#f2f7ff"] : ["#d6e6f7", "#6aa5dc", "#1f5fa6", "#08264d"],
        heatmap: dark.matches ? ["#1d3a57", "#2f6ea8", "#6db3ff", "#f2f7ff"] : ["#d6e6f7", "#6aa5dc", "#1f5fa6", "#08264d"],
      },
    };
  }

  // Colours for named words, of those that occur.
  function colour(spec, data, channel) {
    if (Array.isArray(spec)) return spec.map((one) => colour(one, data));
    if (spec === null || typeof spec !== "object") return spec;
    const out = Object.fromEntries(Object.entries(spec).map(([name, value]) => [name, colour(value, data, name)]));
    if (out.scale && out.scale.domain && out.field) {
      const seen = new Set(data.map((row) => row[out.field]));
      const present = out.scale.domain.filter((word) => seen.has(word));
      const domain = present.length ? present : out.scale.domain;
      const words = dark.matches ? DARK : LIGHT;
      out.scale = { ...out.scale, domain };
      if (channel === "color") out.scale.range = domain.map((word) => words[word] || MANY[9]);
    }
    return out;
  }

  // What is chosen.
  const control = (name) => $(`[data-control="${name}"]`);
  const chosen = (name) => {
    const found = control(name);
    return !found ? "" : found.type === "checkbox" ? found.checked : found.value;
  };
  function options(name, entries, preferred) {
    const select = control(name);
    if (!select) return;
    let group = null;
    for (const [value, text, of] of entries) {
      if (of && (!group || group.label !== of)) {
        group = document.createElement("optgroup");
        group.label = of;
        select.append(group);
      }
      const option = document.createElement("option");
      option.value = value;
      option.textContent = text;
      (of ? group : select).append(option);
    }
    if (preferred !== undefined && entries.some(([value]) => value === preferred)) select.value = preferred;
  }
  const distinct = (name, column) => [...new Set(rows(name).map((row) => row[column]))];
  const key = (value) => (value === null ? "\u0000" : value);
  const shown = (value) => (value === null ? NONE : value);
  const until = (data, step) => data.map((row) => ({ ...row, until: row.at + step }));
  const gap = (data) => {
    const at = [...new Set(data.map((row) => row.at))].sort((a, b) => a - b);
    return at.slice(1).reduce((least, one, i) => Math.min(least, one - at[i]), Infinity);
  };
  // Rows in order of time with the number of their piece: a new one begins behind a gap that is much longer than usual.
  function pieces(data) {
    const gaps = data.slice(1).map((row, i) => row.at - data[i].at).sort((a, b) => a - b);
    const long = Math.max(1000, 5 * (gaps[Math.floor(gaps.length / 2)] || 0));
    let piece = 0;
    return data.map((row, i) => ({ ...row, piece: i && row.at - data[i - 1].at > long ? ++piece : piece }));
  }
  const BOXES = charts.budget.encoding.color.scale.domain;
  const PART_ORDER = charts["time-parts"].encoding.color.scale.domain;
  const HOLD_ORDER = charts.holds.encoding.color.scale.domain;

  // What each chart draws of its rows.
  const prepared = {
    heat() {
      const [series, name] = JSON.parse(chosen("heat.series") || '["",""]');
      const sums = new Map();
      for (const row of rows("heat")) {
        if (row.series !== series || row.name !== name || (row.long_poll && chosen("heat.polls"))) continue;
        const id = row.at + "/" + row.from_ms;
        const sum = sums.get(id) || { ...row, exchanges: 0 };
        sum.exchanges += row.exchanges;
        sums.set(id, sum);
      }
      return [...sums.values()];
    },
    "delivery-heat": () => rows("delivery-heat").filter((row) => row.name === chosen("delivery-heat.name")),
    "latency-by-api": () => span ? stepped() : rows("latency-by-api").filter((row) => row.max_ms > 0).map((row) => ({ ...row, p50_ms: row.p50_ms || 1e-3 })),
    "time-parts"() {
      const by = chosen("time-parts.by");
      const api = chosen("time-parts.api");
      const data = rows("time-parts").filter((row) => (!api || row.api === api) && inside(row));
      const totals = new Map();
      for (const row of data) totals.set(shown(row[by]), (totals.get(shown(row[by])) || 0) + row.total_ms);
      const most = new Set([...totals].sort((a, b) => b[1] - a[1]).slice(0, 20).map(([name]) => name));
      const label = (row) => {
        const name = shown(row[by]);
        return most.has(name) ? `${name.length > 40 ? name.slice(0, 39) + "\u2026" : name}, ${seconds(totals.get(name))}` : "(others)";
      };
      return data
        .map((row) => ({ group: label(row), part: row.part, seconds: row.total_ms / 1000, order: PART_ORDER.indexOf(row.part), total: totals.get(shown(row[by])) }))
        .sort((a, b) => b.total - a.total);
    },
    budget() {
      const sums = new Map();
      for (const row of rows("budget").filter(inside)) {
        if (!sums.has(row.client_id)) sums.set(row.client_id, BOXES.map(() => 0));
        BOXES.forEach((box, i) => (sums.get(row.client_id)[i] += row[box]));
      }
      return [...sums].flatMap(([client, each]) => {
        const total = each.reduce((a, b) => a + b, 0);
        return BOXES.map((box, i) => ({ client, box, order: i, seconds: each[i] / 1000, share: each[i] / total })).filter((row) => row.seconds > 0);
      });
    },
    holds: () => rows("holds").filter((row) => !chosen("holds.api") || row.api === chosen("holds.api"))
      .map((row) => ({ ...row, order: HOLD_ORDER.indexOf(row.hold) })),
    outliers: () => rows("outliers").map((row, i) => ({ ...row, row: i })).filter((row) => kept(row) && row.slow_ms > 0),
    "sessions-alive": () => until(rows("sessions-alive").filter((row) => key(row.broker) === chosen("sessions-alive.broker")), demandStep()),
    sessions() {
      const last = Math.max(...rows("sessions").map((row) => row.closed_at || row.opened_at || 0), ...rows("epochs").map((row) => row.at));
      const first = Math.min(...rows("sessions").map((row) => row.opened_at || Infinity));
      return rows("sessions")
        .filter((row) => key(row.broker) === chosen("sessions-alive.broker") && (!chosen("sessions.end") || row.end_reason === chosen("sessions.end")))
        .map((row) => ({ ...row, opened_at: row.opened_at || first, closed_at: row.closed_at || last }));
    },
    epochs: () => pieces(rows("epochs").filter((row) => row.session_key === chosen("epochs.session")).map((row) => ({ ...row, session_outcome: row.session_outcome || "unknown" }))),
    throughput() {
      const measure = chosen("throughput.measure");
      return until(rows("throughput").map((row) => ({ ...row, rate: row[measure] / row.seconds, api: shown(row.api) })), (rows("throughput")[0] || { seconds: 1 }).seconds * 1000);
    },
  };
  const seconds = (ms) => (ms < 1000 ? `${Number(ms.toPrecision(3))} ms` : `${Number((ms / 1000).toPrecision(3)).toLocaleString("en")} s`);
  const demandStep = () => {
    const step = gap(rows("sessions-alive"));
    return Number.isFinite(step) ? step : 1000;
  };
  // The stretch of time that is looked at, in ms since the epoch; null for all of it.
  let span = null;
  const axis = rows("time-axis");
  const step = Number.isFinite(gap(axis)) ? gap(axis) : 1000;
  const from = axis.length ? axis[0].at : 0;
  const to = axis.length ? axis[axis.length - 1].at + step : 1;
  function inside(row) {
    const begin = row.opened_at !== undefined ? row.opened_at : row.at;
    if (!span || begin === undefined || begin === null) return true;
    const end = row.closed_at || row.until || begin;
    return end >= span[0] && begin <= span[1];
  }
  // Quantiles of a stretch of time, out of the heat map's steps: right to a step.
  function stepped() {
    const found = new Map();
    for (const row of rows("heat").filter((one) => one.series === "api" && inside(one))) {
      if (!found.has(row.name)) found.set(row.name, []);
      found.get(row.name).push(row);
    }
    return [...found].map(([api, steps]) => {
      steps.sort((a, b) => a.to_ms - b.to_ms);
      const exchanges = steps.reduce((sum, one) => sum + one.exchanges, 0);
      const at = (share) => {
        let sum = 0;
        return steps.find((one) => (sum += one.exchanges) >= share * exchanges).to_ms;
      };
      return { api, exchanges, p50_ms: at(0.5), p90_ms: at(0.9), p99_ms: at(0.99), max_ms: at(1) };
    });
  }
  function kept(row) {
    if (!inside(row)) return false;
    const api = chosen("outliers.api");
    const text = chosen("outliers.text").toLowerCase();
    return (!api || row.api === api) && (!text || Object.values(row).some((value) => String(value).toLowerCase().includes(text)));
  }

  const clicked = {
    outliers: (row) => showExchange(row),
    sessions(row) {
      if (![...control("epochs.session").options].some((option) => option.value === row.session_key)) return say("its epochs are not in this report");
      control("epochs.session").value = row.session_key;
      draw("epochs").then(() => document.getElementById("epochs").scrollIntoView({ block: "nearest" }));
    },
  };

  function said_empty(empty, data) {
    empty.hidden = data.length > 0;
    empty.textContent = span ? "Nothing of this kind in this time." : "Nothing of this kind in the capture.";
  }
  const views = {};
  async function draw(name) {
    const box = $(`[data-chart="${name}"]`);
    if (!box) return;
    const data = prepared[name]().filter(inside);
    const empty = box.parentElement.querySelector(".empty");
    said_empty(empty, data);
    box.hidden = !data.length;
    if (views[name]) {
      views[name].finalize();
      delete views[name];
    }
    box.replaceChildren();
    if (!data.length) return;
    const width = Math.max(260, box.clientWidth);
    const spec = colour(charts[name], folded(name, data));
    const whole = { ...spec, data: { values: data } };
    if (spec.height && spec.height.step) {
      const lanes = new Set(data.map((row) => row[spec.encoding.y.field])).size;
      whole.height = Math.max(spec.height.step * lanes, 40);
    }
    const overTime = isOverTime(spec);
    const inner = width - margins().left - margins().right;
    if (spec.vconcat) whole.vconcat = spec.vconcat.slice(0, folded(name, data).length ? 2 : 1).map((one) => ({ ...one, width: inner }));
    else Object.assign(whole, overTime ? { width: inner } : { width, autosize: { type: "fit-x", contains: "padding" } });
    if (name === "time-parts" && chosen("time-parts.shares")) {
      Object.assign(whole.encoding.x, { stack: "normalize", title: "share of the time of all its exchanges together", axis: { format: "~%" } });
    }
    narrow(whole, overTime ? inner : width);
    if (overTime) timed(whole, inner);
    // The ends and ticks of the axis of time: Vega-Lite would join those given for the beginnings of bars with those of
    // their ends.
    const patch = (made) => {
      const [low, high] = span || [from, to];
      const { ticks } = roundTicks(low, high, inner);
      const scales = made.scales.filter((scale) => scale.type === "utc");
      const names = new Set(scales.map((scale) => scale.name));
      scales.forEach((scale) => Object.assign(scale, { domain: [low, high], nice: false }));
      const ticked = (group) => {
        (group.axes || []).filter((axis) => names.has(axis.scale)).forEach((axis) => Object.assign(axis, { values: ticks }));
        (group.marks || []).forEach(ticked);
      };
      ticked(made);
      return made;
    };
    const view = await window.vegaEmbed(box, whole, {
      mode: "vega-lite", actions: false, renderer: "svg", ast: true, patch, config: theme(), tooltip: { theme: dark.matches ? "dark" : "light" },
    });
    views[name] = view;
    box.dataset.drawn = data.length;
    if (clicked[name]) view.view.addEventListener("click", (_, item) => item && item.datum && clicked[name](item.datum));
  }
  // Words that a chart makes itself, for its colours.
  function folded(name, data) {
    if (name === "latency-by-api") return ["p50", "p90", "p99", "max"].map((quantile) => ({ quantile }));
    if (name !== "sessions-alive") return data;
    return [["created", "created"], ["evicted", "evicted"], ["refused", "refused"], ["epoch_errors", "epoch errors"]]
      .filter(([column]) => data.some((row) => row[column] > 0)).map(([, event]) => ({ event }));
  }
  function isOverTime(spec) {
    return spec !== null && typeof spec === "object" && (spec.type === "temporal" || Object.values(spec).some(isOverTime));
  }
  // Charts over time have the time figure's axis: its margins, and its ends and ticks, or those of the stretch that is
  // looked at. The title of the other axis stands above the chart, for margins are the same everywhere.
  function timed(whole, inner) {
    const [low, high] = span || [from, to];
    const { apart } = roundTicks(low, high, inner);
    const { left } = margins();
    const format = apart < 1000 ? "%H:%M:%S.%L" : apart < 864e5 ? "%H:%M:%S" : "%Y-%m-%d";
    whole.padding = { left: 0, right: 0, top: 4, bottom: 4 };
    const visit = (spec, chart) => {
      if (spec === null || typeof spec !== "object") return;
      if (spec.encoding && (spec.height || spec.mark)) chart = spec;
      for (const [channel, one] of Object.entries(spec)) {
        if (channel === "x" && one.type === "temporal") {
          spec.x = { ...one, axis: { ...one.axis, format } };
        } else if (channel === "y" && one && one.field) {
          if (one.axis === null) whole.padding.left = left;
          else {
            if (one.title) chart.title = { text: one.title, anchor: "start" };
            spec.y = { ...one, title: null, axis: { ...one.axis, minExtent: left, maxExtent: left, labelLimit: left - 10 } };
          }
        } else visit(one, chart);
      }
    };
    visit(whole, whole);
  }
  // A title in two lines, broken at the blank nearest its middle.
  function halves(text) {
    const blanks = [...text].flatMap((letter, i) => (letter === " " ? [i] : []));
    const at = blanks.sort((a, b) => Math.abs(a - text.length / 2) - Math.abs(b - text.length / 2))[0];
    return at === undefined ? text : [text.slice(0, at), text.slice(at + 1)];
  }
  function narrow(spec, width) {
    if (spec === null || typeof spec !== "object") return;
    if (spec.legend && spec.legend.orient === "top" && !spec.legend.gradientLength) spec.legend = { ...spec.legend, columns: Math.max(1, Math.floor(width / 190)) };
    if (spec.x && typeof spec.x.title === "string" && spec.x.title.length * 6.5 > width - 190) spec.x = { ...spec.x, title: halves(spec.x.title) };
    if (spec.axis && spec.axis.tickCount) spec.axis.tickCount = Math.max(2, Math.min(spec.axis.tickCount, Math.floor(width / 120)));
    Object.values(spec).forEach((one) => narrow(one, width));
  }

  // Rows of a chart as a table, made when they are asked for.
  const MOST = 500;
  function unfold(details) {
    if (details.querySelector("table")) return;
    const name = details.dataset.rows;
    const { names, kinds, values } = island[name];
    const count = values.length ? values[0].length : 0;
    const box = document.createElement("div");
    box.className = "rows";
    box.tabIndex = 0;
    box.setAttribute("role", "region");
    box.setAttribute("aria-label", "Rows of " + name);
    const table = document.createElement("table");
    const head = table.createTHead().insertRow();
    names.forEach((column, c) => {
      const title = document.createElement("th");
      title.scope = "col";
      if (kinds[c] === "number") title.className = "right";
      title.textContent = column;
      head.append(title);
    });
    const body = table.createTBody();
    for (let i = 0; i < Math.min(count, MOST); i++) {
      const row = body.insertRow();
      values.forEach((column, c) => {
        const one = row.insertCell();
        if (kinds[c] === "number") one.className = "right";
        one.textContent = column[i] === null ? "" : kinds[c] === "time" ? instant(column[i]) : String(column[i]);
      });
    }
    box.append(table);
    details.append(box);
    if (count > MOST) {
      const more = document.createElement("p");
      more.className = "empty";
      more.textContent = `${(count - MOST).toLocaleString("en")} more rows are in the CSV.`;
      details.append(more);
    }
  }

  function sift(name) {
    const table = $(`[data-table="${name}"]`);
    if (!table) return;
    const lines = [...table.tBodies[0].rows];
    const data = name === "outliers" ? rows("outliers") : null;
    const timed = name === "failures" || name === "network" ? rows(name) : null;
    const silent = name === "latency" ? restretched(lines) : null;
    const followed = followers[name] ? followed_by(name, lines) : name === "versions" ? versions_shown() : null;
    const search = $(`[data-filter="${name}"]`);
    const text = search ? search.value.toLowerCase() : "";
    for (const line of lines) {
      if (data) line.hidden = !kept(data[Number(line.id.split("-")[1])]);
      else line.hidden = !line.textContent.toLowerCase().includes(text) || (timed !== null && !inside(timed[Number(line.dataset.row)])) || (silent !== null && silent.has(Number(line.dataset.row))) || (followed !== null && !followed(line));
    }
    const left = lines.filter((line) => !line.hidden).length;
    const label = $(`[data-shown="${name}"]`);
    if (label) label.textContent = left === lines.length ? "" : `${left} of ${lines.length}`;
  }

  // Latency by API and client in the stretch of time that is looked at, out of steps; the rows that have none in it.
  const QUANTILES = [[4, 0.5], [5, 0.9], [6, 0.99], [7, 0.999], [8, 1]];
  const exact = new Map();
  function restretched(lines) {
    const found = new Map();
    for (const row of span ? rows("latency-steps").filter(inside) : []) {
      if (!found.has(row.line)) found.set(row.line, []);
      found.get(row.line).push(row);
    }
    const silent = new Set();
    for (const line of lines) {
      const cells = [...line.cells];
      if (!exact.has(line)) exact.set(line, cells.map((cell) => [cell.textContent, cell.dataset.v]));
      if (!span) {
        cells.forEach((cell, i) => put(cell, ...exact.get(line)[i]));
        continue;
      }
      const steps = (found.get(Number(line.dataset.row)) || []).sort((a, b) => a.to_ms - b.to_ms);
      const count = steps.reduce((sum, one) => sum + one.exchanges, 0);
      if (!count) silent.add(Number(line.dataset.row));
      cells.slice(9).forEach((cell) => put(cell, "", ""));
      figure(cells[2], count);
      figure(cells[3], steps.reduce((sum, one) => sum + one.errors, 0));
      for (const [column, share] of count ? QUANTILES : []) {
        let sum = 0;
        figure(cells[column], steps.find((one) => (sum += one.exchanges) >= share * count).to_ms);
      }
    }
    return silent;
  }
  // Lists that count: what each line has in the stretch of time that is looked at, in the columns named here (others
  // are of the whole capture and fall silent); lines that have nothing in it go.
  const followers = {
    clients: { exchanges: 5, errors: 6, silent: [4] },
    brokers: { exchanges: 3, silent: [2] },
    errors: { count: 2, silent: [] },
    "session-clients": { created: 2, reused: 3, ended: 4, refused: 6, lost: 7, epoch_errors: 8, silent: [5, 9] },
  };
  function sums_of(name) {
    const found = new Map();
    for (const row of rows(name + "-steps").filter(inside)) {
      if (!found.has(row.line)) found.set(row.line, { ...row });
      else Object.keys(row).forEach((column) => typeof row[column] === "number" && (found.get(row.line)[column] += row[column]));
    }
    return found;
  }
  function followed_by(name, lines) {
    const sums = span ? sums_of(name) : null;
    for (const line of lines) {
      const cells = [...line.cells];
      if (!exact.has(line)) exact.set(line, cells.map((cell) => [cell.textContent, cell.dataset.v]));
      const { silent, ...columns } = followers[name];
      const mine = sums && sums.get(Number(line.dataset.row));
      for (const [column, at] of Object.entries(columns)) {
        if (mine) figure(cells[at], mine[column]);
        else put(cells[at], ...exact.get(line)[at]);
      }
      silent.forEach((at) => put(cells[at], ...(sums ? ["", ""] : exact.get(line)[at])));
    }
    return (line) => !sums || sums.has(Number(line.dataset.row));
  }
  // What the overview says of the stretch of time that is looked at; packets and problems are counted for all of it.
  const tiles = new Map();
  function tiled() {
    for (const tile of $$("[data-tile]")) {
      if (!tiles.has(tile)) tiles.set(tile, [...tile.childNodes].map((one) => one.cloneNode(true)));
      tile.replaceChildren(...tiles.get(tile).map((one) => one.cloneNode(true)));
    }
    if (!span) return;
    const there = axis.filter((row) => inside({ at: row.at, until: row.at + step }));
    const sum = (column) => there.reduce((total, row) => total + row[column], 0);
    const whole = "of the whole capture";
    const words = {
      exchanges: [sum("exchanges"), `${sum("errors").toLocaleString("en")} error`],
      clients: [sums_of("clients").size, ""],
      brokers: [sums_of("brokers").size, ""],
      time: [`${Number(((span[1] - span[0]) / 1000).toPrecision(3)).toLocaleString("en")} s`, ""],
      packets: [null, whole],
      problems: [null, whole],
    };
    for (const tile of $$("[data-tile]")) {
      const [count, text] = words[tile.dataset.tile];
      const small = $("small", tile);
      if (count !== null) tile.firstChild.textContent = count.toLocaleString("en");
      small.textContent = text;
    }
  }
  // Versions by client and API: those used in the stretch of time that is looked at, in the cells of both.
  function versions_shown() {
    const table = $('[data-table="versions"]');
    if (!table) return null;
    const listed = rows("versions");
    const sums = span ? sums_of("versions") : null;
    const found = new Map();
    for (const [line, sum] of sums || []) {
      if (!listed[line]) continue; // a list that was cut to keep the file small
      const { client_id, api, api_version } = listed[line];
      const id = JSON.stringify([client_id, api === null ? "(unknown)" : api]);
      if (!found.has(id)) found.set(id, { used: [], exchanges: 0 });
      found.get(id).used.push(api_version);
      found.get(id).exchanges += sum.exchanges;
    }
    const left = new Set();
    for (const line of table.tBodies[0].rows) {
      for (const cell of [...line.cells].slice(1)) {
        if (!exact.has(cell)) exact.set(cell, [cell.textContent, cell.title, cell.className]);
        const one = cell.dataset.pair ? found.get(cell.dataset.pair) : undefined;
        if (one) left.add(line);
        const [text, title, kind] = exact.get(cell);
        cell.textContent = !sums ? text : one ? ranges(one.used) : "";
        cell.title = !sums ? title : one ? `${one.exchanges.toLocaleString("en")} exchanges` : "";
        cell.className = !sums ? kind : one && one.used.length > 1 ? "several" : "";
      }
    }
    return (line) => !sums || left.has(line);
  }
  function ranges(used) {
    const runs = [];
    for (const one of used.sort((a, b) => a - b)) {
      if (runs.length && runs.at(-1)[1] === one - 1) runs.at(-1)[1] = one;
      else runs.push([one, one]);
    }
    return runs.map(([a, b]) => (a === b ? `${a}` : `${a}\u2013${b}`)).join(", ");
  }
  function put(cell, text, value) {
    cell.textContent = text;
    if (value !== undefined) cell.dataset.v = value;
  }
  function figure(cell, value) {
    put(cell, Number.isInteger(value) ? value.toLocaleString("en") : Number(value.toPrecision(3)).toLocaleString("en"), String(value));
  }

  function order(button) {
    const title = button.closest("th");
    const table = title.closest("table");
    const column = title.cellIndex;
    const down = title.getAttribute("aria-sort") !== "descending";
    $$("th", table).forEach((one) => one.removeAttribute("aria-sort"));
    title.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (line) => {
      const one = line.cells[column];
      return "v" in one.dataset ? (one.dataset.v === "" ? -Infinity : Number(one.dataset.v)) : one.textContent.trim();
    };
    const sign = down ? -1 : 1;
    const body = table.tBodies[0];
    const lines = [...body.rows].map((line) => [value(line), line]);
    lines.sort(([a], [b]) => sign * (typeof a === "number" ? a - b || 0 : a.localeCompare(b, "en", { numeric: true })));
    body.append(...lines.map(([, line]) => line));
  }

  // Choices.
  const series = distinct("heat", "series").flatMap((kind) =>
    [...new Set(rows("heat").filter((row) => row.series === kind).map((row) => row.name))].map((name) =>
      [JSON.stringify([kind, name]), kind ? name : "all exchanges", kind === "api" ? "API" : kind ? "client" : ""]));
  options("heat.series", series);
  options("delivery-heat.name", distinct("delivery-heat", "name").map((name) => [name, name]));
  const every = [["", "every API"]];
  const apis = (name) => [...every, ...distinct(name, "api").filter((api) => api !== null).sort().map((api) => [api, api])];
  options("time-parts.api", apis("time-parts"));
  options("holds.api", apis("holds"), "Fetch");
  options("outliers.api", apis("outliers"));
  options("sessions-alive.broker", distinct("sessions-alive", "broker").map((broker) => [key(broker), shown(broker)]));
  options("sessions.end", [["", "any"], ...distinct("sessions", "end_reason").sort().map((end) => [end, end])]);
  const facts = new Map(rows("sessions").map((row) => [row.session_key, row]));
  options("epochs.session", distinct("epochs", "session_key").map((id) => {
    const one = facts.get(id);
    return [id, one ? `${id} \u2013 ${one.clients || NONE}, ${one.requests} requests, ${one.end_reason}` : id];
  }), (rows("sessions").filter((row) => row.last_epoch !== null).sort((a, b) => b.last_epoch - a.last_epoch)[0] || {}).session_key);

  // The figure of time, and what is said below it.
  const element = svgElement;
  function drawAxis() {
    const box = $("#axis");
    if (!box || !axis.length) return;
    const words = dark.matches ? DARK : LIGHT;
    const { most, longest } = drawTimeFigure({ box, rows, from, to, step, span, words, seconds, choose: showExchange });
    $("#axis-scale").textContent = `rate up to ${most.toLocaleString("en")} exchanges, latencies up to ${seconds(longest)} together, each in ${seconds(step)}`;
  }

  // Who writes which topics, who reads them: three columns, bands as wide as their bytes; drawn by hand.
  const LINE = 15;
  const OTHERS = "(others)";
  function drawFlow() {
    const box = $('[data-chart="flow"]');
    const sums = new Map();
    for (const row of rows("flow").filter(inside)) {
      const id = JSON.stringify([row.way, row.client_id, row.topic]);
      if (!sums.has(id)) sums.set(id, { ...row, bytes: 0 });
      sums.get(id).bytes += row.bytes;
    }
    const data = [...sums.values()].sort((a, b) => b.bytes - a.bytes);
    said_empty(box.parentElement.querySelector(".empty"), data);
    box.hidden = !data.length;
    if (!data.length) return;
    const width = Math.max(260, box.clientWidth);
    const place = (row, side) => (side === 1 ? row.topic : row.client_id);
    const columns = [0, 1, 2].map((side) => {
      const nodes = new Map();
      for (const row of data) {
        if (side !== 1 && (row.way === "writes") !== (side === 0)) continue;
        const name = place(row, side);
        if (!nodes.has(name)) nodes.set(name, { name, side, writes: 0, reads: 0, used: { writes: 0, reads: 0 } });
        nodes.get(name)[row.way] += row.bytes;
      }
      return [...nodes.values()].sort((a, b) => (a.name === OTHERS) - (b.name === OTHERS) || Math.max(b.writes, b.reads) - Math.max(a.writes, a.reads));
    });
    const most = Math.max(...columns.map((nodes) => nodes.reduce((sum, one) => sum + Math.max(one.writes, one.reads), 0)));
    const tall = (amount) => Math.max(2, (amount / most) * 200);
    const room = Math.max(8, Math.floor((width / 3 - 12) / 7));
    let height = 0;
    for (const nodes of columns) {
      let y = 0;
      for (const one of nodes) {
        one.lines = folds(one.name, room);
        const counts = [["writes", one.side === 1 ? " in" : ""], ["reads", one.side === 1 ? " out" : ""]]
          .filter(([way]) => one[way] > 0).map(([way, word]) => bytes(one[way]) + word);
        one.names = one.lines.length;
        one.lines.push(...(counts.join(", ").length > room ? counts : [counts.join(", ")]));
        one.y = y + one.lines.length * LINE + 3;
        one.height = tall(Math.max(one.writes, one.reads));
        y = one.y + one.height + 9;
      }
      height = Math.max(height, y);
    }
    const svg = element("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    const bar = 10;
    const left = [0, (width - bar) / 2, width - bar];
    const colours = new Map(columns[1].map((one, i) => [one.name, MANY[i % MANY.length]]));
    const node = (side, name) => columns[side].find((one) => one.name === name);
    for (const row of data) {
      const [a, b] = row.way === "writes" ? [node(0, row.client_id), node(1, row.topic)] : [node(1, row.topic), node(2, row.client_id)];
      const thick = tall(row.bytes);
      const [from_y, to_y] = [a, b].map((one) => {
        const at = one.y + Math.min(one.used[row.way], Math.max(0, one.height - thick)) + thick / 2;
        one.used[row.way] += thick;
        return at;
      });
      const [from_x, to_x] = [left[a.side] + bar, left[b.side]];
      const middle = (from_x + to_x) / 2;
      const band = element("path", { class: "band", d: `M${from_x},${from_y}C${middle},${from_y} ${middle},${to_y} ${to_x},${to_y}`, stroke: colours.get(row.topic), "stroke-width": thick }, svg);
      element("title", {}, band).textContent = `${row.client_id} ${row.way} ${row.topic}: ${bytes(row.bytes)}`;
    }
    for (const one of columns.flat()) {
      element("rect", { x: left[one.side], y: one.y, width: bar, height: one.height, class: "node", ...(one.side === 1 ? { style: `fill: ${colours.get(one.name)}` } : {}) }, svg);
      one.lines.forEach((text, i) => {
        const label = element("text", { class: i < one.names ? "name" : "tick", x: [0, width / 2, width][one.side], y: one.y - 6 - (one.lines.length - 1 - i) * LINE, "text-anchor": ["start", "middle", "end"][one.side] }, svg);
        label.textContent = text;
      });
    }
    box.replaceChildren(svg);
  }
  // A text in lines of so many letters, three at most.
  function folds(text, room) {
    const letters = [...text];
    const lines = [];
    for (let i = 0; i < letters.length && lines.length < 3; i += room) lines.push(letters.slice(i, i + room).join(""));
    if (letters.length > 3 * room) lines[2] = lines[2].slice(0, -1) + "\u2026";
    return lines;
  }
  function bytes(count) {
    const steps = count < 1000 ? 0 : Math.min(4, Math.floor(Math.log10(count) / 3));
    return `${Number((count / 1000 ** steps).toPrecision(3))} ${["B", "kB", "MB", "GB", "TB"][steps]}`;
  }
  const clock = (at) => new Date(at).toISOString().slice(11, to - from < 20000 ? 23 : 19);
  function look(chosen) {
    span = chosen && chosen[1] > chosen[0] ? [Math.max(from, chosen[0]), Math.min(to, chosen[1])] : null;
    for (const [id, at] of [["axis-from", span ? span[0] : from], ["axis-to", span ? span[1] : to]]) {
      $("#" + id).value = String(Math.round(((at - from) / (to - from)) * 1000));
      $("#" + id).setAttribute("aria-valuetext", clock(at));
    }
    $("#axis-said").textContent = span ? `${clock(span[0])} to ${clock(span[1])} UTC` : "whole capture";
    $("#axis-all").disabled = !span;
    drawAxis();
    ["heat", "delivery-heat", "latency-by-api", "time-parts", "budget", "holds", "outliers", "sessions-alive", "sessions", "epochs", "throughput"].forEach(draw);
    drawFlow();
    tiled();
    ["outliers", "failures", "latency", "network", "versions", ...Object.keys(followers)].forEach(sift);
    $$("ol.findings li[data-from]").forEach((one) => {
      const begin = Number(one.dataset.from);
      one.classList.toggle("elsewhere", !inside({ at: begin, until: Number(one.dataset.to || begin) }));
    });
  }
  const box = $("#axis");
  if (box && axis.length) {
    const inner = () => Math.max(260, box.clientWidth) - margins().left - margins().right;
    const time = (event) => {
      const share = (event.clientX - box.getBoundingClientRect().left - margins().left) / inner();
      return from + Math.max(0, Math.min(1, share)) * (to - from);
    };
    let began = null;
    box.addEventListener("pointerdown", (event) => {
      if (event.target.closest("button")) return;
      began = time(event);
      box.setPointerCapture(event.pointerId);
    });
    box.addEventListener("pointermove", (event) => {
      if (began === null) return;
      span = [Math.min(began, time(event)), Math.max(began, time(event))];
      drawAxis();
    });
    box.addEventListener("pointerup", (event) => {
      if (began === null) return;
      const ends = [Math.min(began, time(event)), Math.max(began, time(event))];
      began = null;
      look(((ends[1] - ends[0]) / (to - from)) * inner() < 4 ? null : ends);
    });
    const ends = () => ["axis-from", "axis-to"].map((id) => from + (Number($("#" + id).value) / 1000) * (to - from));
    ["axis-from", "axis-to"].forEach((id) => $("#" + id).addEventListener("change", () => {
      const [a, b] = ends();
      look(a <= from && b >= to ? null : [Math.min(a, b), Math.max(a, b)]);
    }));
    $("#axis-all").addEventListener("click", () => look(null));
    $$("[data-look]").forEach((button) => button.addEventListener("click", () => {
      const [a, b] = button.dataset.look.split(" ").map(Number);
      look([a - 2 * step, (b || a) + 2 * step]);
      $("#time").scrollIntoView({ block: "start" });
    }));
  }

  // A choice redraws what depends on it.
  const depends = { "sessions-alive.broker": ["sessions-alive", "sessions"], "outliers.text": ["outliers"] };
  for (const element of $$("[data-control]")) {
    const name = element.dataset.control;
    const redraw = () => {
      (depends[name] || [name.split(".")[0]]).forEach(draw);
      if (name.startsWith("outliers.")) sift("outliers");
    };
    element.addEventListener(element.type === "search" ? "input" : "change", redraw);
  }
  $$("[data-filter]").forEach((element) => element.addEventListener("input", () => sift(element.dataset.filter)));
  $$("[data-severity]").forEach((box) => box.addEventListener("change", () =>
    $$(`[data-severity-of="${box.dataset.severity}"]`).forEach((one) => (one.hidden = !box.checked))));
  $$("details[data-rows]").forEach((details) => details.addEventListener("toggle", () => details.open && unfold(details)));
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-csv], [data-copy], [data-copy-text], th button");
    if (!button) return;
    if (button.dataset.csv) download(button.dataset.csv);
    else if (button.dataset.copyText) {
      event.preventDefault();
      copy(button.dataset.copyText, button);
    } else if ("copy" in button.dataset) copy(button.previousElementSibling.textContent, button);
    else order(button);
  });

  // An exchange: what is known of it, and its bytes, field by field, as `kdissect show` has them.
  const dialog = $("#bytes");
  const SHOWN = [["at_text", "at (UTC)"], ["client_id", "client"], ["broker", "broker"], ["latency_ms", "latency"], ["slow_ms", "slow by"],
    ["queued_ms", "queued"], ["broker_ms", "broker's time"], ["hold", "hold"], ["error", "error"], ["request_frame", "request ends in frame"], ["response_frame", "response ends in frame"]];
  function showExchange(row) {
    const facts = SHOWN.filter(([name]) => row[name] !== null && row[name] !== undefined && row[name] !== "").flatMap(([name, title]) => {
      const term = document.createElement("dt");
      const fact = document.createElement("dd");
      term.textContent = title;
      fact.textContent = name.endsWith("_ms") ? seconds(row[name]) : String(row[name]);
      return [term, fact];
    });
    $("#bytes-title").textContent = `${row.exchange_id}  ${row.api || ""}${row.api_version === null ? "" : " v" + row.api_version}`;
    $("#bytes-said").textContent = "";
    $("#bytes-facts").replaceChildren(...facts);
    const there = row.exchange_id in packed.bytes;
    const button = $("#bytes-open");
    button.hidden = !there;
    button.dataset.bytes = row.exchange_id;
    $("#bytes-command").hidden = there;
    $("#bytes-command code").textContent = `kdissect show ${dialog.dataset.target} ${row.exchange_id}`;
    $("#bytes-rows").hidden = true;
    if (!dialog.open) dialog.showModal();
  }
  function showBytes(id) {
    const one = packed.bytes[id];
    $("#bytes-title").textContent = one.title;
    $("#bytes-said").textContent = one.notes.join(" ");
    const line = (cells, head, depth) => {
      const row = document.createElement("tr");
      cells.forEach((text, i) => {
        const cell = document.createElement(head ? "th" : "td");
        if (head) cell.colSpan = 6;
        cell.className = i === 0 && !head ? "right" : i === 1 || i === 2 ? "nowrap" : "text";
        if (i === 2) cell.style.paddingInlineStart = 0.6 + depth * 0.8 + "rem";
        cell.textContent = text === null ? "" : text;
        row.append(cell);
      });
      return row;
    };
    const lines = [];
    for (const side of one.sides) {
      lines.push(line([side.title], true));
      for (const [depth, ...cells] of side.rows) lines.push(line(cells, false, depth));
    }
    $("tbody", dialog).replaceChildren(...lines);
    $("#bytes-rows").hidden = false;
    $("#bytes-open").hidden = $("#bytes-command").hidden = true;
    if (!dialog.open) {
      $("#bytes-facts").replaceChildren();
      dialog.showModal();
    }
  }
  $("#bytes-close").addEventListener("click", () => dialog.close());
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-bytes]");
    if (button) showBytes(button.dataset.bytes);
  });

  const all = () => {
    drawAxis();
    drawFlow();
    return Promise.all(Object.keys(charts).map(draw));
  };
  let waiting = 0;
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(all, 150);
  });
  dark.addEventListener("change", all);
  window.kdissect = { csv, rows };
  all().then(() => (document.documentElement.dataset.ready = "yes"));
})();
