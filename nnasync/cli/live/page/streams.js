// A card for each stream: its latencies, its account, its priority and its deadline.

import { segments } from "./controls.js";
import { LatencyPlot } from "./plots.js";

const LOSSES = ["missed", "dropped", "failed", "cancelled"];
const TONES = { HIGH: "--high", MEDIUM: "--medium", LOW: "--low" };
const TITLES = { audio: "Sound", video: "Picture" };
const HOLD_MS = 1000; // What was just changed here is not overwritten by an older tick.

export class StreamCard {
  #name;
  #send;
  #card;
  #plot;
  #priority;
  #before = null;
  #settings = { priority: "", deadline_ms: 0 };
  #changedAt = -Infinity;

  constructor(name, parent, send) {
    this.#name = name;
    this.#send = send;
    const template = document.getElementById("stream-card");
    this.#card = template.content.firstElementChild.cloneNode(true);
    this.#card.id = `stream-${name}`;
    parent.append(this.#card);
    this.#find("h2").textContent = TITLES[name];
    this.#find(".plot").setAttribute("aria-label", `Latencies of the ${name} stream`);
    const choices = ["LOW", "MEDIUM", "HIGH"].map((value) => ({ value, text: value.toLowerCase() }));
    this.#priority = segments(this.#find(".segments"), choices, (priority) =>
      this.#change({ priority }),
    );
    const slider = this.#find("input");
    slider.setAttribute("aria-label", `Deadline of the ${name} stream`);
    slider.oninput = () => this.#change({ deadline_ms: milliseconds(slider.value) });
    this.#plot = new LatencyPlot(this.#find(".plot"), name === "audio" ? "--high" : "--medium");
  }

  set(settings) {
    if (performance.now() - this.#changedAt < HOLD_MS) return;
    this.#settings = settings;
    this.#showSettings();
  }

  update(stream) {
    const before = this.#before ?? stream;
    if (stream.submitted < before.submitted) this.#plot.clear();
    const lost = LOSSES.reduce((sum, key) => sum + Math.max(stream[key] - before[key], 0), 0);
    this.#plot.add(stream.latencies, lost);
    this.#before = stream;
    this.#showFigures(stream);
    this.#showAccount(stream);
  }

  draw() {
    if (this.#settings.deadline_ms) this.#plot.draw(this.#settings.deadline_ms);
  }

  #find(selector) {
    return this.#card.querySelector(selector);
  }

  #change(change) {
    this.#settings = { ...this.#settings, ...change };
    this.#changedAt = performance.now();
    this.#showSettings();
    this.#send({ type: "stream", stream: this.#name, ...this.#settings });
  }

  #showSettings() {
    const { priority, deadline_ms: deadline } = this.#settings;
    this.#card.style.setProperty("--tone", `var(${TONES[priority]})`);
    this.#priority.select(priority);
    this.#find(".deadline output").textContent = `${deadline} ms`;
    this.#find("input").value = place(deadline);
  }

  #showFigures(stream) {
    const figures = this.#plot.figures();
    const cells = {
      hits: figures ? share(figures.hits) : "–",
      p50: time(figures?.p50),
      p99: time(figures?.p99),
      rate: stream.rate_hz.toFixed(0),
    };
    for (const [name, text] of Object.entries(cells)) {
      const cell = this.#find(`[data-of="${name}"]`);
      const [value, unit = ""] = text.split(" ");
      if (cell.dataset.text === text) continue;
      cell.dataset.text = text;
      cell.replaceChildren(value, Object.assign(document.createElement("small"), { textContent: unit }));
    }
    this.#find('[data-of="hits"]').classList.toggle("bad", Boolean(figures && figures.hits < 0.95));
    this.#find(".rate").textContent = stream.lost ? `${stream.lost} lost in the network` : "";
  }

  // submitted = completed + missed + ...: every item is in one place.
  #showAccount(stream) {
    const parts = [`<b>${stream.submitted}</b> came =`, `<b>${stream.completed}</b> completed`];
    for (const key of [...LOSSES, "pending"]) {
      if (stream[key] === 0) continue;
      const kind = key === "pending" ? "" : ' class="lost"';
      parts.push(`<span${kind}>+ <b>${stream[key]}</b> ${key}</span>`);
    }
    this.#find(".account").innerHTML = parts.map((part) => `<span>${part}</span>`).join("");
  }
}

// The slider is logarithmic: 0 is 1 ms, 100 is 1 s.
function milliseconds(position) {
  return Math.max(1, Math.round(10 ** ((position / 100) * 3)));
}

function place(ms) {
  return Math.round((Math.log10(Math.max(ms, 1)) / 3) * 100);
}

function share(value) {
  const percent = value * 100;
  return `${percent >= 99.95 || percent < 10 ? percent.toFixed(0) : percent.toFixed(1)} %`;
}

function time(ms) {
  if (ms === undefined) return "–";
  return `${ms < 10 ? ms.toFixed(1) : ms.toFixed(0)} ms`;
}
