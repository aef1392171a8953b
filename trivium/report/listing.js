// The list of all runs: a tree of forks, each with its state and figures; those that are ticked are drawn together.
const runList = (() => {
  "use strict";
  const PARTS = ["running", "finished", "stopped", "failed", "broken off", "new"];
  let words = "";

  // `tools`: make (elements), whole and number (figures), choose (called with the names that are ticked).
  function draw(host, listing, tools) {
    const { make, whole, number, choose } = tools;
    host.hidden = listing === null || listing === undefined;
    if (host.hidden) return;
    const chosen = new Set(listing.chosen);
    const counts = PARTS.map((state) => [state, listing.runs.filter((run) => run.state === state).length]).filter(([, count]) => count);
    const found = words.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = listing.runs.filter((run) => found.every((word) => `${run.name} ${run.state} ${run.stage}`.toLowerCase().includes(word)));
    const focused = document.activeElement?.id === "run-filter" ? document.activeElement.selectionStart : null;
    const filter = make("input", { id: "run-filter", type: "search", placeholder: "filter: name, state, stage", "aria-label": "Filter runs", value: words,
      oninput: (event) => { words = event.target.value; draw(host, listing, tools); } });
    const left = make("span", { class: "quiet" }, chosen.size ? `${chosen.size} of at most ${listing.most} shown below` : "Tick runs to lay them over one another.");
    const clear = make("button", { type: "button", class: "plain", onclick: () => choose([]) }, "show none");
    const head = ["", "run", "state", "progress", "stage", "loss", "best validation", "bits per byte", "tokens/s", "last event", "forked from"];
    const numbers = [5, 6, 7, 8];
    host.replaceChildren(
      make("div", { class: "run-head" }, make("h1", {}, listing.folder), make("span", { class: "where" }, `${whole(listing.runs.length)} runs: ${counts.map(([state, count]) => `${whole(count)} ${state}`).join(", ")}`)),
      ...listing.problems.map((problem) => make("p", { class: "card wide warns problem" }, problem)),
      make("div", { class: "card wide" },
        make("div", { class: "list-tools" }, filter, left, chosen.size ? clear : null),
        make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Runs" },
          make("table", { class: "runs" },
            make("thead", {}, make("tr", {}, ...head.map((title, place) => make("th", { scope: "col", class: numbers.includes(place) ? "n" : "" }, title)))),
            make("tbody", {}, ...shown.map((run) => line(run)))))));
    if (focused !== null) {
      filter.focus();
      filter.setSelectionRange(focused, focused);
    }

    function line(run) {
      const tick = make("input", { type: "checkbox", "aria-label": `Show ${run.name}`, onchange: (event) => choose(event.target.checked ? [...chosen, run.name] : [...chosen].filter((name) => name !== run.name)) });
      tick.checked = chosen.has(run.name);
      tick.disabled = !tick.checked && chosen.size >= listing.most;
      const name = make("a", { href: `?run=${encodeURIComponent(run.name)}`, onclick: (event) => { event.preventDefault(); choose([run.name]); } }, run.name);
      const tree = make("span", { class: "tree" }, run.depth ? `${"\u2003".repeat(run.depth - 1)}\u2514 ` : "");
      const bar = make("i");
      bar.style.width = `${run.total_steps ? Math.min(100, (100 * run.step) / run.total_steps) : 0}%`;
      const progress = make("div", {}, `${whole(run.step)}${run.total_steps === null ? "" : ` of ${whole(run.total_steps)}`}`, make("div", { class: "progress" }, bar));
      const best = run.best_loss === null ? "" : `${run.best_loss.toFixed(4)} at ${whole(run.best_step)}`;
      const cells = [tick, make("span", {}, tree, name), make("span", { class: `status ${run.state.split(" ")[0]}`, title: run.why }, run.state), progress, run.stage,
        run.loss === null ? "" : run.loss.toFixed(4), best, run.best_bits === null ? "" : run.best_bits.toFixed(4),
        run.tokens_per_second === null ? "" : number(run.tokens_per_second), ago(run.last_time), run.forked];
      return make("tr", {}, ...cells.map((content, place) => make("td", { class: numbers.includes(place) ? "n" : "" }, content)));
    }
  }

  function ago(time) {
    if (time === null || time === undefined) return "";
    const seconds = Math.max(0, Date.now() / 1000 - time);
    const [unit, size] = [["s", 1], ["min", 60], ["h", 3600], ["d", 86400]].findLast(([, size]) => seconds >= size) ?? ["s", 1];
    return `${Math.floor(seconds / size)} ${unit} ago`;
  }

  return { draw };
})();
