// Spikes that can be clicked, in their list and in charts: a dialog with the rows. Text is only ever set as text.
(() => {
  "use strict";

  const NEAR = 9; // pixels between a click and a spike's triangle
  const host = document.getElementById("spikes");
  const dialog = document.getElementById("spike");
  let shown = ""; // the spike that the dialog has

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "class") element.className = value;
      else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null));
    return element;
  }

  const count = (number) => number.toLocaleString("en-US");
  const all = () => report.data.runs.flatMap((run) => run.spikes.map((spike) => ({ run, spike })));
  const nameOf = ({ run, spike }) => `${run.label}/${spike.step}`;

  function rowOf(row) {
    const pieces = row.pieces.flatMap((piece) => [
      make("div", { class: "piece" }, make("b", {}, piece.name), ` ${piece.span}`),
      piece.text ? make("pre", {}, piece.text) : null,
    ]);
    const more = row.more ? make("div", { class: "quiet" }, `and ${count(row.more)} more documents`) : null;
    return make("li", {}, make("div", { class: "row-head" }, make("span", { class: "loss" }, row.loss), `row ${count(row.row)}, ${row.source}`), ...pieces, more);
  }

  function open(found) {
    const { run, spike } = found;
    const several = report.data.runs.length > 1 ? `${run.label}, ` : "";
    const more = spike.more ? make("p", { class: "quiet" }, `and ${count(spike.more)} more rows`) : null;
    const override = spike.lines.length ? [make("p", {}, "With this the documents of the rows that stand out do not count in the loss:"), make("pre", { class: "override" }, spike.lines.join("\n"))] : [];
    const commands = make("details", {}, make("summary", {}, "Commands"), ...spike.commands.flatMap(([words, command]) => [make("p", {}, words), make("pre", {}, command)]));
    dialog.replaceChildren(
      make("form", { method: "dialog" }, make("button", { "aria-label": "Close", title: "Close" }, "\u00d7")),
      make("h2", { id: "spike-title" }, `${several}step ${count(spike.step)}, stage ${spike.stage}`),
      make("p", {}, `${spike.what}. Charts have it at ${count(spike.update)}, the updates completed.`),
      ...override, commands, make("h3", {}, "Rows by their loss"), make("ol", { class: "spike-rows" }, ...spike.rows.map(rowOf)), more);
    shown = nameOf(found);
    if (!dialog.open) dialog.showModal();
  }

  function draw() {
    const spikes = all();
    host.hidden = spikes.length === 0;
    const buttons = spikes.map((found) => make("button", { type: "button", onclick: () => open(found) },
      make("b", {}, `${report.data.runs.length > 1 ? `${found.run.label}, ` : ""}step ${count(found.spike.step)}`), ` ${found.spike.what}`));
    host.replaceChildren(make("h2", {}, "Spikes"),
      make("p", { class: "lead" }, "Click one, here or its triangle in a chart: its rows by loss, their documents, and what leaves them out."),
      make("div", { class: "spike-list" }, ...buttons));
    const now = spikes.find((found) => nameOf(found) === shown);
    if (dialog.open && now) open(now);
  }

  // A click near a spike's place on the step axis of any chart; a drag zooms, and is not one.
  let pressed = 0;
  document.addEventListener("mousedown", (event) => { pressed = event.clientX; }, { capture: true });
  document.addEventListener("click", (event) => {
    if (Math.abs(event.clientX - pressed) > 3) return;
    for (const { plot, host: element } of report.views.values()) {
      if (!plot || !element.contains(event.target)) continue;
      const left = event.clientX - plot.over.getBoundingClientRect().left;
      const near = all().map((found) => ({ found, far: Math.abs(plot.valToPos(found.spike.update, "x") - left) })).filter(({ far }) => far <= NEAR);
      if (near.length) open(near.sort((one, other) => one.far - other.far)[0].found);
    }
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  document.addEventListener("drawn", draw);
  draw();
})();
