// Sends each question to every model and shows the answers as they are written. Text is only ever set as text.
(() => {
  "use strict";

  const data = JSON.parse(document.getElementById("data").textContent);
  const element = (id) => document.getElementById(id);
  const [form, question, send, stop] = ["form", "question", "send", "stop"].map(element);
  let asking = null; // aborts the answers that are being written

  function make(tag, name, ...children) {
    const made = document.createElement(tag);
    if (name) made.className = name;
    made.append(...children);
    return made;
  }

  const models = data.models.map((model, number) => {
    const turns = make("div", "turns");
    turns.setAttribute("aria-live", "polite");
    const column = make("section", "model", make("h2", "", model.title, make("span", "quiet", ` · ${model.parameters} parameters`)), turns);
    return { number, column, turns, messages: [] };
  });
  element("models").append(...models.map(({ column }) => column));
  element("temperature").value = data.temperature;
  element("tokens").value = data.max_tokens;
  element("tokens").max = data.most_tokens;

  function addTurn(model, who, ...content) {
    const turn = make("div", `turn ${who}`, ...content);
    model.turns.append(turn);
    model.turns.scrollTop = model.turns.scrollHeight;
    return turn;
  }

  function addPart(turn, { kind, text }) {
    turn.append(kind === "text" ? text : make("span", `tool ${kind}`, text));
    turn.parentElement.scrollTop = turn.parentElement.scrollHeight;
  }

  // Every line of an answer, as soon as it is there.
  async function* linesOf(answer) {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      yield* lines.map((line) => JSON.parse(line));
    }
  }

  async function ask(model, text, signal) {
    addTurn(model, "user", text);
    const turn = addTurn(model, "assistant");
    const body = { model: model.number, messages: model.messages, question: text, temperature: Number(element("temperature").value), max_tokens: Math.round(Number(element("tokens").value)) };
    try {
      const answer = await fetch("ask", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });
      if (!answer.ok) throw new Error((await answer.text()).trim());
      for await (const line of linesOf(answer)) {
        if (line.error !== undefined) throw new Error(line.error);
        if (line.messages !== undefined) model.messages = line.messages;
        else addPart(turn, line);
      }
      if (!turn.textContent) turn.append(make("span", "quiet", "(nothing)"));
    } catch (error) {
      turn.append(make("span", "error", signal.aborted ? " (stopped; this turn is forgotten)" : error.message));
    }
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = question.value.trim();
    if (!text || asking !== null) return;
    question.value = "";
    asking = new AbortController();
    send.hidden = true;
    stop.hidden = false;
    await Promise.all(models.map((model) => ask(model, text, asking.signal)));
    asking = null;
    send.hidden = false;
    stop.hidden = true;
    question.focus();
  });
  question.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  stop.addEventListener("click", () => asking?.abort());
  element("new").addEventListener("click", () => {
    asking?.abort();
    models.forEach((model) => {
      model.messages = [];
      model.turns.replaceChildren();
    });
  });
  question.focus();
})();
