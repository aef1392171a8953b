// What charts need beside uPlot: smoothing, axes, ticks, pictures and tables to save. Plain values in, plain values out.
const chartTools = (() => {
  "use strict";

  // A running mean whose weights halve over `halfLife` on the axis, so that thinned lines are smoothed alike.
  function smoothed(xs, values, halfLife) {
    if (!halfLife) return values;
    let sum = 0;
    let weight = 0;
    let last = null;
    return values.map((value, i) => {
      if (value === null || value === undefined) return value;
      const kept = last === null ? 0 : 0.5 ** ((xs[i] - last) / halfLife);
      sum = kept * sum + value;
      weight = kept * weight + 1;
      last = xs[i];
      return sum / weight;
    });
  }

  // The value at x of a line through points, both ascending; null outside of it and where it has none.
  function interpolated(xs, ys, x) {
    let low = 0;
    let high = xs.length - 1;
    if (high < 0 || x < xs[0] || x > xs[high]) return null;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle;
      else high = middle;
    }
    const part = xs[high] === xs[low] ? 0 : (x - xs[low]) / (xs[high] - xs[low]);
    const value = part === 0 ? ys[low] : ys[low] + part * (ys[high] - ys[low]);
    return Number.isFinite(value) ? value : null;
  }

  // Round values between two ends of a logarithmic axis: 1, 2 and 5 of each power of ten, or more where it is short.
  function logTicks(low, high) {
    if (!(low > 0) || !(high > low)) return [];
    if (high / low < 8) {
      const rough = (high - low) / 5;
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
      return Array.from({ length: Math.floor(high / step) - Math.ceil(low / step) + 1 }, (_, i) => Number(((Math.ceil(low / step) + i) * step).toPrecision(12)));
    }
    const powers = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) powers.push(power);
    const ticks = powers.flatMap((power) => (powers.length > 6 ? [1] : [1, 2, 5]).map((each) => Number((each * 10 ** power).toPrecision(12))));
    return ticks.filter((tick) => tick >= low && tick <= high);
  }

  const clock = (seconds) => {
    const whole = Math.round(seconds);
    const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
    const rest = String(whole % 60).padStart(2, "0");
    return hours ? `${hours}:${String(minutes).padStart(2, "0")}:${rest}` : `${minutes}:${rest}`;
  };

  // A cell that a spreadsheet reads as text, whatever a name begins with.
  function cell(value) {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return String(value);
    const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }

  const csvOf = (rows) => rows.map((row) => row.map(cell).join(",")).join("\n") + "\n";

  function saveAs(name, blob) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  }

  // A chart with its title and its names, on paper.
  function pictureOf(plot, title, names, colours) {
    const scale = devicePixelRatio;
    const pad = 14 * scale;
    const line = 20 * scale;
    const picture = document.createElement("canvas");
    const context = picture.getContext("2d");
    const small = `${12 * scale}px system-ui, sans-serif`;
    context.font = small;
    const rows = [[]];
    let used = 0;
    names.forEach((name) => {
      const width = 26 * scale + context.measureText(name.label).width + 16 * scale;
      if (used + width > plot.width && rows.at(-1).length) {
        rows.push([]);
        used = 0;
      }
      rows.at(-1).push({ ...name, left: used });
      used += width;
    });
    picture.width = plot.width + 2 * pad;
    picture.height = plot.height + 2 * pad + line * (rows.length + 1.4);
    context.fillStyle = colours.paper;
    context.fillRect(0, 0, picture.width, picture.height);
    context.fillStyle = colours.ink;
    context.textBaseline = "middle";
    context.font = `600 ${15 * scale}px system-ui, sans-serif`;
    context.fillText(title, pad, pad + line / 2);
    context.drawImage(plot, pad, pad + line * 1.4);
    context.font = small;
    rows.forEach((row, number) => row.forEach(({ label, colour, dash, left }) => {
      const y = pad + line * (1.4 + number + 0.5) + plot.height;
      context.strokeStyle = colour;
      context.lineWidth = 2.4 * scale;
      context.setLineDash(dash.map((each) => each * scale));
      context.beginPath();
      context.moveTo(pad + left, y);
      context.lineTo(pad + left + 18 * scale, y);
      context.stroke();
      context.fillStyle = colours.ink;
      context.fillText(label, pad + left + 26 * scale, y);
    }));
    return picture;
  }

  return { smoothed, interpolated, logTicks, clock, csvOf, saveAs, pictureOf };
})();
