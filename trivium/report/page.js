// Draws the values in #data: cards, charts, tables. Text is only ever set as text, never as HTML.
(() => {
  "use strict";

  const holder = document.getElementById("data");
  const poll = Number(holder.dataset.poll); // milliseconds between two requests; 0 where no server is asked
  const root = document.documentElement;
  const QUIET = 120; // seconds without an event after which a run no longer counts as running

  // Okabe and Ito's colours, which people with any colour vision can tell apart; yellow darker on white.
  const PALETTES = {
    light: ["#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#a89000", "#7a7f85"],
    dark: ["#4aa3df", "#e69f00", "#1fbf92", "#f0783c", "#d98cb6", "#8fd0f5", "#f0e442", "#a9afb6"],
  };
  const RUN_DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];

  let data = JSON.parse(holder.textContent);
  let zoom = null;
  let axis = "steps";        // what the horizontal axis counts: steps, tokens or seconds
  let smoothing = 0;         // a half-life, as a part of the axis
  let drawn = "";
  const views = new Map();   // chart id -> { plot, chart, host, ... }
  const hidden = new Map();  // chart id -> labels of the series that are switched off
  const opened = new Map();  // details id -> whether it is open
  const logged = new Map();  // chart id -> whether its axis is logarithmic, where a reader chose
  const runAxes = [];        // of each run: steps with their tokens and seconds

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") element.className = value;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }

  // ---- numbers

  function bytesOf(text) {
    const raw = atob(text);
    const bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return bytes.buffer;
  }

  function unpack(series) {
    const steps = Array.from(new Uint32Array(bytesOf(series.steps)));
    const values = Array.from(new Float32Array(bytesOf(series.values)), (value) => (Number.isFinite(value) ? value : null));
    return [steps, values];
  }

  function unpackAxes() {
    runAxes.splice(0, runAxes.length, ...data.runs.map(({ axis: packed }) => ({
      steps: Array.from(new Uint32Array(bytesOf(packed.steps))),
      tokens: Array.from(new Float64Array(bytesOf(packed.tokens))),
      seconds: Array.from(new Float64Array(bytesOf(packed.seconds))),
    })));
  }

  // Where a run's step is on the axis; null for a step that has no time yet.
  const placeOf = (run, step) => (axis === "steps" ? step : chartTools.interpolated(runAxes[run].steps, runAxes[run][axis], step));

  // The end of the axis: of the longest run.
  function axisEnd(unit = axis) {
    if (unit === "steps") return data.steps;
    return Math.max(0, ...runAxes.map((each) => Math.max(0, ...each[unit].filter(Number.isFinite)))) || 1;
  }

  const placed = (run, step) => placeOf(run, step) ?? axisEnd();

  const whole = (number) => Math.round(number).toLocaleString("en-US");

  function shortNumber(value, digits = 5) {
    const size = Math.abs(value);
    if (size !== 0 && size < 1e-3) return value.toExponential(Math.max(0, digits - 3)).replace(/\.?0+e/, "e");
    if (size >= 1e9) return Number((value / 1e9).toPrecision(digits)) + "B";
    if (size >= 1e6) return Number((value / 1e6).toPrecision(digits)) + "M";
    if (size >= 1e5) return Number((value / 1e3).toPrecision(digits)) + "k";
    return Number(value.toPrecision(digits)).toLocaleString("en-US", { maximumFractionDigits: 6 });
  }

  function shown(value, unit, digits = 5) {
    if (value === null || value === undefined) return "";
    if (unit === "%") return Number(value.toPrecision(Math.min(digits, 4))) + "%";
    if (unit === "s") return shortNumber(value, Math.min(digits, 3)) + " s";
    if (unit === "bytes") return Number((value / 1e9).toPrecision(3)) + " GB";
    return shortNumber(value, digits);
  }

  // ---- colours

  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const palette = () => PALETTES[root.dataset.theme === "dark" ? "dark" : "light"];
  const sourceColour = (name) => palette()[Math.max(0, data.sources.indexOf(name)) % palette().length];
  const faded = (colour, part) => colour + Math.round(part * 255).toString(16).padStart(2, "0");

  // Lines of one label are one thing with gaps: one name, one colour, one switch.
  const labelsOf = (series) => [...new Set(series.map(({ label }) => label))];

  function lookOf(chart, series) {
    const several = data.runs.length > 1;
    const withSources = chart.series.some((each) => each.source !== null);
    const plain = chart.series.filter((each) => each.source === null && each.run === series.run && each.style === series.style);
    const kind = labelsOf(plain).indexOf(series.label);
    let colour = palette()[(series.run + kind * data.runs.length) % palette().length];
    let dash = RUN_DASHES[series.run % RUN_DASHES.length];
    if (series.source !== null) {
      colour = sourceColour(series.source);
      const turn = Math.floor(Math.max(0, data.sources.indexOf(series.source)) / palette().length);
      if (!several) dash = RUN_DASHES[turn % RUN_DASHES.length];
    } else if (withSources) {
      colour = css("--ink");
    }
    if (series.style === "dashed") dash = [4, 4];
    return { colour, dash, width: series.style === "faint" ? 1 : withSources && series.source === null ? 2.4 : 1.8 };
  }

  // ---- a chart

  const isLog = (chart) => logged.get(chart.id) ?? chart.scale === "log";
  const halfLife = (chart) => (chart.smooth ? smoothing * axisEnd() : 0);
  // A running mean that was written stays as it is: what it is the mean of is smoothed.
  const isSmoothed = (chart, series) => halfLife(chart) > 0 && (series.style === "faint" || chart.series.every(({ style }) => style !== "faint"));

  // Places on the axis, and the values there of every line, smoothed or as they were written.
  function columnsOf(chart, window = halfLife(chart)) {
    return uPlot.join(chart.series.map((series) => {
      const [steps, written] = unpack(series);
      const known = steps.map((step) => placeOf(series.run, step));
      const there = known.map((place, i) => i).filter((i) => known[i] !== null);
      const places = there.map((i) => known[i]);
      const values = chartTools.smoothed(places, there.map((i) => written[i]), isSmoothed(chart, series) ? window : 0);
      return [places, isLog(chart) ? values.map((value) => (value > 0 ? value : null)) : values];
    }));
  }

  // Behind a smoothed line, the line as it was written.
  function drawWritten(plot, view) {
    if (!halfLife(view.chart)) return;
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    view.written.slice(1).forEach((values, number) => {
      if (view.off[number] || !isSmoothed(view.chart, view.chart.series[number])) return;
      ctx.strokeStyle = faded(lookOf(view.chart, view.chart.series[number]).colour, .25);
      ctx.lineWidth = devicePixelRatio;
      ctx.beginPath();
      let drawing = false;
      values.forEach((value, i) => {
        if (value === undefined) return;
        if (value === null) { drawing = false; return; }
        const [x, y] = [plot.valToPos(view.written[0][i], "x", true), plot.valToPos(value, "y", true)];
        if (drawing) ctx.lineTo(x, y);
        else ctx.moveTo(x, y);
        drawing = true;
      });
      ctx.stroke();
    });
    ctx.restore();
  }

  function stackedColumns(columns, off) {
    const total = new Array(columns[0].length).fill(0);
    return [columns[0], ...columns.slice(1).map((values, number) => values.map((value, i) => (total[i] += off[number] ? 0 : value ?? 0)))];
  }

  // Series are thinned one by one, so each has steps of its own: the nearest one is meant, unless it is far away.
  function nearest(columns, series, index) {
    const [steps, values] = [columns[0], columns[series]];
    const reach = (bounds()[1] - bounds()[0]) / 50;
    for (let left = index, right = index; left >= 0 || right < steps.length; ) {
      const before = left >= 0 ? steps[index] - steps[left] : Infinity;
      const behind = right < steps.length ? steps[right] - steps[index] : Infinity;
      if (Math.min(before, behind) > reach) return null;
      const next = before <= behind ? left-- : right++;
      if (values[next] !== undefined) return next;
    }
    return null;
  }

  // The runs that a chart shows; bands and their names are those of the first.
  const runsOf = (chart) => [...new Set(chart.series.map(({ run }) => run))].sort((a, b) => a - b);

  function drawBands(plot, chart) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    data.runs[runsOf(chart)[0]].stages.forEach((stage, number) => {
      const run = runsOf(chart)[0];
      const left = plot.valToPos(placed(run, stage.start), "x", true);
      const right = plot.valToPos(placed(run, stage.end), "x", true);
      if (number % 2 === 1) {
        ctx.fillStyle = css("--band");
        ctx.fillRect(left, bbox.top, right - left, bbox.height);
      }
    });
    ctx.restore();
  }

  function drawMarks(plot, chart) {
    const { ctx, bbox } = plot;
    const scale = devicePixelRatio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top - 14 * scale, bbox.width, bbox.height + 14 * scale);
    ctx.clip();
    runsOf(chart).forEach((number) => {
      const run = data.runs[number];
      ctx.lineWidth = scale;
      ctx.strokeStyle = number === 0 ? css("--edge") : faded(palette()[number % palette().length], .55);
      ctx.setLineDash(number === 0 ? [] : [2 * scale, 3 * scale]);
      run.stages.slice(1).forEach((stage) => line(plot.valToPos(placed(number, stage.start), "x", true)));
      run.marks.forEach((mark) => {
        const x = plot.valToPos(placed(number, mark.step), "x", true);
        const trouble = mark.kind !== "resume" && mark.kind !== "fork";
        ctx.strokeStyle = ctx.fillStyle = trouble ? css("--warn") : data.runs.length > 1 ? palette()[number % palette().length] : css("--accent");
        ctx.setLineDash([4 * scale, 3 * scale]);
        if (!trouble) line(x);
        triangle(x, trouble);
      });
    });
    if (!chart.small) names();
    ctx.restore();

    function line(x) {
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    function triangle(x, down) {
      const size = 4 * scale;
      const y = down ? bbox.top : bbox.top + bbox.height;
      ctx.beginPath();
      ctx.moveTo(x - size, y);
      ctx.lineTo(x + size, y);
      ctx.lineTo(x, y + (down ? 1.6 : -1.6) * size);
      ctx.fill();
    }
    function names() {
      ctx.font = `${11 * scale}px system-ui, sans-serif`;
      ctx.fillStyle = css("--quiet");
      ctx.textBaseline = "bottom";
      ctx.textAlign = "left";
      const first = runsOf(chart)[0];
      data.runs[first].stages.forEach((stage) => {
        const left = Math.max(plot.valToPos(placed(first, stage.start), "x", true), bbox.left);
        const right = Math.min(plot.valToPos(placed(first, stage.end), "x", true), bbox.left + bbox.width);
        if (ctx.measureText(stage.name).width + 6 * scale < right - left) {
          ctx.fillText(stage.name, left + 3 * scale, bbox.top - 3 * scale);
        }
      });
    }
  }

  const bounds = () => zoom ?? [0, axisEnd()];

  const ROUND = [1, 2, 5].flatMap((n) => [...Array(16).keys()].map((p) => n * 10 ** p)).sort((a, b) => a - b);
  const ROUND_SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, ...[1, 2, 5, 10, 20, 50, 100].map((days) => days * 86400)];

  // A place on the axis in words: a step, tokens, or hours, minutes and seconds.
  const placeWords = (place, digits) => (axis === "seconds" ? chartTools.clock(place) : place >= 1e5 ? shortNumber(place, digits) : whole(place));

  function axes(chart, bare) {
    const grid = { stroke: css("--line"), width: 1 };
    const font = "12px system-ui, sans-serif"; // uPlot scales whole pixels only
    const shared = { stroke: css("--quiet"), grid, ticks: { show: false }, font };
    return [
      { ...shared, grid: { show: false }, size: bare ? 4 : 28, gap: 6, space: 70, incrs: axis === "seconds" ? ROUND_SECONDS : ROUND,
        values: (_, splits) => splits.map((split) => (bare ? "" : placeWords(split, 4))) },
      { ...shared, size: 62, gap: 6, space: chart.small ? 22 : 34,
        ...(isLog(chart) ? { splits: (_plot, _axis, low, high) => chartTools.logTicks(low, high), filter: (_, splits) => splits } : {}),
        values: (_, splits) => splits.map((split) => (split === null ? "" : shown(split, chart.unit, 4))) },
    ];
  }

  function yRange(chart) {
    return (_, low, high) => {
      if (low === null || high === null) return [0, 1];
      if (chart.stacked) return [0, 100];
      if (isLog(chart)) return [low / 1.06, high * 1.06];
      if (chart.scale === "zero") return [0, high > 0 ? high * 1.06 : 1];
      const room = (high - low || Math.abs(high) || 1) * .06;
      return [low - room, high + room];
    };
  }

  function options(view) {
    const { chart, host, off } = view;
    const series = chart.series.map((each, number) => {
      const { colour, dash, width } = lookOf(chart, each);
      const points = each.style === "marked" || each.style === "points";
      return {
        label: each.label,
        show: !off[number],
        stroke: each.style === "faint" && !isSmoothed(chart, each) ? faded(colour, .4) : colour,
        width: chart.stacked ? 0 : isSmoothed(chart, each) ? 2.2 : halfLife(chart) ? 1 : width,
        dash,
        // What is planned holds from step to step: a value belongs to the steps before its place on the axis.
        paths: each.style === "stepped" || each.style === "dashed" ? uPlot.paths.stepped({ align: -1 }) : undefined,
        points: { show: points || each.all === 1, size: 5, fill: colour, stroke: colour },
        spanGaps: false,
      };
    });
    const visible = chart.series.map((_, number) => number).filter((number) => !off[number]);
    const bands = chart.stacked
      ? visible.map((number, place) => place && {
          series: [number + 1, visible[place - 1] + 1],
          fill: faded(lookOf(chart, chart.series[number]).colour, .55),
        }).filter(Boolean)
      : [];
    if (chart.stacked && visible.length) {
      series[visible[0]].fill = faded(lookOf(chart, chart.series[visible[0]]).colour, .55);
    }
    return {
      width: Math.max(120, host.clientWidth),
      height: chart.small ? 92 : chart.stacked ? 190 : view.wide ? 260 : 220,
      padding: [chart.small ? 8 : 18, 10, 0, 0],
      legend: { show: false },
      cursor: {
        sync: { key: "steps" },
        drag: { x: true, y: false, setScale: false },
        dataIdx: (plot, series, index) => (series === 0 ? index : nearest(plot.data, series, index)),
        points: { size: 7 },
        y: false,
      },
      scales: { x: { time: false, range: bounds }, y: { range: yRange(chart), ...(isLog(chart) ? { distr: 3 } : {}) } },
      axes: axes(chart, view.bare),
      series: [{}, ...series],
      bands,
      hooks: {
        drawClear: [(plot) => drawBands(plot, chart)],
        drawAxes: [(plot) => drawWritten(plot, view)],
        draw: [(plot) => drawMarks(plot, chart)],
        setCursor: [(plot) => showValues(view, plot)],
        setSelect: [(plot) => {
          if (plot.select.width < 4) return;
          const ends = [plot.select.left, plot.select.left + plot.select.width].map((x) => plot.posToVal(x, "x"));
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          setZoom(ends);
        }],
      },
    };
  }

  function draw(view) {
    view.plot?.destroy();
    view.off = view.chart.series.map((series) => hidden.get(view.chart.id)?.has(series.label) ?? false);
    view.columns = columnsOf(view.chart);
    view.written = columnsOf(view.chart, 0);
    const columns = view.chart.stacked ? stackedColumns(view.columns, view.off) : view.columns;
    view.plot = new uPlot(options(view), columns, view.host);
    view.plot.over.addEventListener("dblclick", () => setZoom(null));
    view.host.querySelector("canvas").setAttribute("role", "img");
    view.host.querySelector("canvas").setAttribute("aria-label", `${view.chart.title}, by ${AXIS_WORDS[axis]}`);
    drawLegend(view);
    showValues(view, view.plot);
  }

  function drawLegend(view) {
    view.values = new Map();
    view.legend.replaceChildren(...labelsOf(view.chart.series).map((label) => {
      const number = view.chart.series.findIndex((series) => series.label === label);
      const { colour, dash } = lookOf(view.chart, view.chart.series[number]);
      const now = make("span", { class: "now" });
      view.values.set(label, now);
      return make("button", { type: "button", "aria-pressed": String(!view.off[number]), title: label, onclick: () => toggle(view, label) },
        swatch(colour, dash, view.chart.series[number].style, view.chart.stacked), make("span", { class: "name" }, label), now);
    }));
  }

  function swatch(colour, dash, style, area) {
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg");
    svg.setAttribute("width", area ? 11 : 18);
    svg.setAttribute("height", 11);
    svg.setAttribute("aria-hidden", "true");
    const shape = document.createElementNS(space, area ? "rect" : "line");
    const where = area ? { width: 11, height: 11, rx: 2, fill: colour } : { x1: 0, x2: 18, y1: 6, y2: 6, stroke: colour, "stroke-width": style === "faint" ? 1.2 : 2.4, "stroke-dasharray": dash.join(" ") };
    Object.entries(where).forEach(([name, value]) => shape.setAttribute(name, value));
    svg.append(shape);
    return svg;
  }

  function toggle(view, label) {
    const labels = hidden.get(view.chart.id) ?? new Set();
    if (!labels.delete(label)) labels.add(label);
    hidden.set(view.chart.id, labels);
    draw(view);
  }

  // The values under the cursor, or the last ones where there is none.
  function showValues(view, plot) {
    if (view.plot !== plot) return;
    const there = plot.cursor.idx !== null && plot.cursor.idx !== undefined && plot.cursor.left >= 0;
    view.values.forEach((now, label) => {
      const found = view.chart.series.map((series, number) => number + 1).filter((number) => view.chart.series[number - 1].label === label)
        .map((number) => {
          const values = view.columns[number];
          const index = there ? nearest(view.columns, number, plot.cursor.idx) : values.findLastIndex((value) => value !== undefined && value !== null);
          return { value: values[index ?? -1], far: index === null ? Infinity : there ? Math.abs(plot.data[0][index] - plot.data[0][plot.cursor.idx]) : -index };
        });
      const least = Math.min(...found.map(({ far }) => far));
      const texts = found.filter(({ far }) => far === least).map(({ value }) => shown(value, view.chart.unit));
      now.textContent = texts.join(" \u2192 "); // where two stages meet, the figure of each
    });
    const place = there ? plot.data[0][plot.cursor.idx] : 0;
    view.at.textContent = !there ? "" : axis === "steps" ? `step ${whole(place)}` : axis === "tokens" ? `${shortNumber(place, 4)} tokens` : chartTools.clock(place);
  }

  function setZoom(ends) {
    zoom = ends === null ? null : [Math.max(0, ends[0]), Math.min(axisEnd(), ends[1])];
    views.forEach(({ plot }) => plot.setScale("x", { min: bounds()[0], max: bounds()[1] }));
    drawZoom();
  }

  function drawZoom() {
    const select = document.getElementById("zoom");
    const stages = data.runs[0]?.stages ?? [];
    const place = stages.findIndex((stage) => zoom !== null && zoom[0] === placed(0, stage.start) && zoom[1] === placed(0, stage.end));
    const choices = [make("option", { value: "all" }, "all steps"), ...stages.map((stage, number) => make("option", { value: String(number) }, stage.name))];
    if (zoom !== null && place < 0) choices.unshift(make("option", { value: "own" }, zoom.map((end) => placeWords(end, 4)).join(" to ")));
    select.replaceChildren(...choices);
    select.value = zoom === null ? "all" : place < 0 ? "own" : String(place);
  }

  const AXIS_WORDS = { steps: "step", tokens: "tokens", seconds: "time" };

  function setAxis(unit) {
    axis = unit;
    zoom = null;
    views.forEach(draw);
    drawZoom();
  }

  function setSmoothing(part) {
    smoothing = part;
    views.forEach((view) => { if (view.chart.smooth) draw(view); });
  }

  // ---- charts as files

  const fileName = (chart, ending) => `${chart.title || chart.id}.${ending}`.toLowerCase().replace(/[^a-z0-9.]+/g, "-");

  function savePicture(view) {
    const names = labelsOf(view.chart.series.filter((_, number) => !view.off[number])).map((label) => ({ label, ...lookOf(view.chart, view.chart.series.find((series) => series.label === label)) }));
    const colours = { paper: css("--card"), ink: css("--ink") };
    chartTools.pictureOf(view.host.querySelector("canvas"), view.chart.title, names, colours)
      .toBlob((blob) => chartTools.saveAs(fileName(view.chart, "png"), blob));
  }

  // The points as they were written, by step; of one run with its tokens and seconds.
  function tableOfChart(chart) {
    const labels = labelsOf(chart.series);
    const rows = new Map();
    chart.series.forEach((series) => {
      const [steps, values] = unpack(series);
      steps.forEach((step, i) => {
        const known = rows.get(step) ?? rows.set(step, new Map()).get(step);
        known.set(series.label, values[i]);
      });
    });
    const [run, ...others] = runsOf(chart);
    const more = others.length ? [] : ["tokens", "seconds"];
    const round = (value) => (value === null ? null : Number(value.toPrecision(7)));
    return [["step", ...more, ...labels], ...[...rows.keys()].sort((a, b) => a - b).map((step) => [
      step, ...more.map((unit) => round(chartTools.interpolated(runAxes[run].steps, runAxes[run][unit], step))), ...labels.map((label) => round(rows.get(step).get(label) ?? null)),
    ])];
  }

  function saveTable(view) {
    chartTools.saveAs(fileName(view.chart, "csv"), new Blob([chartTools.csvOf(tableOfChart(view.chart))], { type: "text/csv" }));
  }

  function chartButtons(view) {
    const { chart } = view;
    const positive = !chart.stacked && !chart.small;
    const log = make("button", { type: "button", "aria-pressed": String(isLog(chart)), title: "Logarithmic axis", onclick: () => {
      logged.set(chart.id, !isLog(view.chart));
      log.setAttribute("aria-pressed", String(isLog(view.chart)));
      draw(view);
    } }, "log");
    return make("span", { class: "chart-buttons" }, positive ? log : null,
      make("button", { type: "button", title: "Save as a picture", onclick: () => savePicture(view) }, "PNG"),
      make("button", { type: "button", title: "Save the points as a table", onclick: () => saveTable(view) }, "CSV"));
  }

  // ---- blocks

  function chartView(chart, wide, bare = false) {
    const view = { chart, wide, bare, host: make("div", { class: "plot" }), legend: make("div", { class: "legend" }), at: make("span", { class: "at", "aria-live": "off" }) };
    views.set(chart.id, view);
    return view;
  }

  function chartBlock(chart, wide) {
    const view = chartView(chart, wide);
    return make("figure", { class: `card${wide ? " wide" : ""}`, id: `block-${chart.id}`, style: "margin:0" },
      make("div", { class: "chart-head" }, make("h3", {}, chart.title), view.at, chartButtons(view)),
      chart.note ? make("p", { class: "note" }, chart.note) : null, view.host, view.legend);
  }

  function panelBlock(panel) {
    const parts = panel.charts.map((chart, number) => {
      const view = chartView(chart, true, number < panel.charts.length - 1);
      return make("div", { class: "part" }, make("div", { class: "part-head" }, make("h3", {}, chart.title), view.legend, view.at, chartButtons(view)), view.host);
    });
    return make("figure", { class: "card wide panel", id: `block-${panel.id}`, style: "margin:0" }, ...parts, panel.note ? make("p", { class: "note" }, panel.note) : null);
  }

  function tableOf(block) {
    const side = (number) => (block.numbers.includes(number) ? "n" : "");
    const head = make("tr", {}, ...block.columns.map((name, number) => make("th", { class: side(number), scope: "col" }, name)));
    const rows = block.rows.map((row) => make("tr", {}, ...row.map((cell, number) => {
      const content = [cell];
      if (block.sources.includes(number) && data.sources.includes(cell)) {
        const mark = make("span", { class: "swatch" });
        mark.style.background = sourceColour(cell);
        content.unshift(mark);
      }
      return make("td", { class: `${side(number)}${content.length > 1 ? " source" : ""}` }, ...content);
    })));
    const nameless = block.columns.every((name) => name === "");
    return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": block.title },
      make("table", {}, nameless ? null : make("thead", {}, head), make("tbody", {}, ...rows)));
  }

  function folding(block, ...content) {
    if (!block.folded) return [make("h3", {}, block.title), ...content];
    const details = make("details", {}, make("summary", {}, block.title), ...content);
    details.open = opened.get(block.id) ?? false;
    details.addEventListener("toggle", () => opened.set(block.id, details.open));
    return [details];
  }

  function tableBlock(block) {
    return make("div", { class: "card wide", id: `block-${block.id}` },
      ...folding(block, block.note ? make("p", { class: "note" }, block.note) : null, tableOf(block)));
  }

  function textBlock(block) {
    const content = block.plain ? make("ul", { class: "words" }, ...block.text.split("\n").map((line) => make("li", {}, line))) : make("pre", {}, block.text);
    return make("div", { class: `card wide${block.plain ? " warns" : ""}`, id: `block-${block.id}` },
      ...folding(block, block.note ? make("p", { class: "note" }, block.note) : null, content));
  }

  function textsBlock(block) {
    const entries = block.entries.map(([label, text]) => make("div", { class: "entry" }, make("div", { class: "note" }, label), make("pre", {}, text)));
    return make("div", { class: "card wide", id: `block-${block.id}` }, make("h3", {}, block.title), block.note ? make("p", { class: "note" }, block.note) : null, make("div", { class: "entries" }, ...entries));
  }

  function blockOf(block, wide) {
    if (block.type === "chart") return chartBlock(block, wide);
    if (block.type === "panel") return panelBlock(block);
    if (block.type === "texts") return textsBlock(block);
    return block.type === "table" ? tableBlock(block) : textBlock(block);
  }

  // Charts come in pairs, unless they are wide; a last single one has the whole width.
  function isWide(section, block) {
    const narrow = section.blocks.filter((each) => each.type === "chart" && !each.wide);
    return block.wide || (narrow.length % 2 === 1 && narrow.at(-1) === block);
  }

  // ---- the page

  function statusOf(run) {
    if (run.status !== "open") return run.status;
    const age = Date.now() / 1000 - run.last_time;
    return poll && age < QUIET ? "running" : "no end written";
  }

  function drawHead() {
    document.title = `${data.title} · trivium`;
    const head = document.getElementById("summary");
    head.classList.toggle("several", data.runs.length > 1);
    head.replaceChildren(...data.runs.flatMap((run) => {
      const status = statusOf(run);
      const last = run.last_time === null || run.last_time === undefined ? "" : `last event ${new Date(run.last_time * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;
      return [
        make("div", { class: "run-head" }, make("h1", {}, run.label), make("span", { class: `status ${status.split(" ")[0]}` }, status), make("span", { class: "where" }, [run.folder, last].filter(Boolean).join(" · "))),
        make("div", { class: "cards" }, ...run.cards.map(([label, value, more]) => numberCard(label, value, more))),
      ];
    }));
  }

  function numberCard(label, value, more) {
    const card = make("div", { class: "number" }, make("div", { class: "label" }, label), make("div", { class: "value" }, value), make("div", { class: "more" }, more));
    const total = /^of ([\d,]+)$/.exec(more);
    if (label === "steps" && total) {
      const bar = make("i");
      const part = Number(value.replaceAll(",", "")) / Number(total[1].replaceAll(",", ""));
      bar.style.width = `${Math.min(100, 100 * part)}%`;
      card.append(make("div", { class: "progress" }, bar));
    }
    return card;
  }

  function drawSections() {
    views.forEach(({ plot }) => plot?.destroy());
    views.clear();
    document.getElementById("sections").replaceChildren(...data.sections.map((section) =>
      make("section", { id: section.id, "aria-label": section.title }, make("h2", {}, section.title), section.lead ? make("p", { class: "lead" }, section.lead) : null,
        make("div", { class: "grid" }, ...section.blocks.map((block) => blockOf(block, isWide(section, block)))))));
    document.getElementById("nav").replaceChildren(...data.sections.map((section) => make("a", { href: `#${section.id}` }, section.title)));
    views.forEach(draw);
    views.forEach((view) => new ResizeObserver(() => {
      const width = Math.max(120, view.host.clientWidth);
      if (views.get(view.chart.id) === view && width !== view.plot.width) view.plot.setSize({ width, height: view.plot.height });
    }).observe(view.host));
    markHere();
  }

  function drawFoot() {
    const made = new Date(data.made * 1000).toISOString().slice(0, 19).replace("T", " ");
    const thinned = [...views.values()].some(({ chart }) => chart.series.some((series) => series.all > data.points));
    const signs = data.runs.some(({ marks }) => marks.length) ? " Triangles on the axis are resumes, those at the top are spikes and skipped steps." : "";
    const how = thinned
      ? `Lines of more than ${whole(data.points)} points are thinned: of each bucket of neighbouring points the least and the greatest are drawn, so that no spike is lost.`
      : "Every point is drawn.";
    document.getElementById("foot").textContent = !data.runs.length ? `Written ${made} UTC.` : `Written ${made} UTC. A step is an update completed; time is that of steps, without evaluations and saves. ${how} Tables and numbers are computed from all steps. Drag over a chart to zoom all of them, double-click to see all steps; a name beside or below a chart hides its line.${signs}`;
  }

  function markHere() {
    const links = [...document.querySelectorAll("#nav a")];
    const sections = data.sections.map(({ id }) => document.getElementById(id));
    let here = -1;
    sections.forEach((section, number) => { if (section.getBoundingClientRect().top < 140) here = number; });
    links.forEach((link, number) => link.classList.toggle("here", number === here));
  }

  function drawList() {
    runList.draw(document.getElementById("listing"), data.listing, { make, whole, number: (value) => shortNumber(value, 4), choose });
    document.getElementById("summary").hidden = !data.runs.length;
    document.querySelectorAll(".tools label").forEach((label) => (label.hidden = !data.runs.length));
    const time = document.querySelector("#axis option[value=seconds]");
    time.disabled = !runAxes.some(({ seconds }) => seconds.some((each) => each > 0));
  }

  // Which runs are drawn is in the address, so that it can be kept.
  function choose(names) {
    const query = names.map((name) => `run=${encodeURIComponent(name)}`).join("&");
    history.replaceState(null, "", query ? `?${query}` : location.pathname);
    zoom = null;
    askForNews();
  }

  // The names of all charts, series and tables; while they are the same, news only move the lines.
  const shapeOf = () => JSON.stringify([root.dataset.theme, data.sources, data.runs.map(({ label }) => label), data.sections.map((section) => [section.id, section.blocks.map((block) => [block.id, (block.charts ?? [block]).map((chart) => chart.series?.map(({ label }) => label))])])]);

  function drawAll() {
    unpackAxes();
    drawList();
    drawHead();
    if (shapeOf() !== drawn) {
      drawSections();
      drawn = shapeOf();
    } else {
      data.sections.flatMap((section) => section.blocks).forEach(redrawBlock);
    }
    drawZoom();
    drawFoot();
    window.report = { data, views };
    document.dispatchEvent(new Event("drawn"));
  }

  function redrawBlock(block) {
    if (["table", "text", "texts"].includes(block.type)) {
      document.getElementById(`block-${block.id}`).replaceWith(blockOf(block));
      return;
    }
    for (const chart of block.charts ?? [block]) {
      const view = views.get(chart.id);
      view.chart = chart;
      view.columns = columnsOf(chart);
      view.written = columnsOf(chart, 0);
      view.plot.setData(chart.stacked ? stackedColumns(view.columns, view.off) : view.columns);
      showValues(view, view.plot);
    }
  }

  function setTheme(theme) {
    root.dataset.theme = theme;
    drawAll();
  }

  const asked = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try { chosen = localStorage.getItem("trivium-theme"); } catch { /* a browser may keep nothing for local files */ }
  asked.addEventListener("change", () => { if (chosen === null) setTheme(asked.matches ? "dark" : "light"); });
  document.getElementById("theme").addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("trivium-theme", chosen); } catch { /* as above */ }
    setTheme(chosen);
  });
  document.getElementById("zoom").addEventListener("change", (event) => {
    const stage = data.runs[0].stages[Number(event.target.value)];
    if (event.target.value !== "own") setZoom(event.target.value === "all" ? null : [placed(0, stage.start), placed(0, stage.end)]);
  });
  document.getElementById("axis").addEventListener("change", (event) => setAxis(event.target.value));
  document.getElementById("smooth").addEventListener("input", (event) => setSmoothing(.1 * (Number(event.target.value) / 100) ** 2));
  addEventListener("scroll", markHere, { passive: true });
  setTheme(chosen ?? (asked.matches ? "dark" : "light"));

  // ---- news, where a server gives them

  let mark = null;
  let waiting = null;
  async function askForNews() {
    clearTimeout(waiting);
    const asked = location.search;
    try {
      const answer = await fetch(`data.json${asked}`, { cache: "no-store", headers: mark ? { "If-None-Match": mark } : {} });
      if (asked !== location.search) return; // others have been chosen since, and asked for
      if (answer.status === 200) {
        mark = answer.headers.get("ETag");
        data = await answer.json();
        drawAll();
      } else if (answer.status === 304) {
        drawList();
        drawHead();
      }
    } catch { /* the server is gone; the page stays as it is */ }
    waiting = setTimeout(askForNews, poll);
  }
  if (poll) waiting = setTimeout(askForNews, poll);
})();
