// Plots that move: latencies of a stream against its deadline, and which thread runs what.

import { fitted, style } from "./canvas.js";
import { serverNow } from "./clock.js";

const SPAN_MS = 10_000;
const CORES_SPAN_MS = 2_000;
const BEHIND_MS = 250; // What happened this long ago has been told.
const FONT = "12px system-ui, sans-serif";

export class LatencyPlot {
  #canvas;
  #tone;
  #points = []; // [captured, milliseconds, in time]
  #losses = []; // [time, how many]
  #top = 0;

  constructor(canvas, tone) {
    this.#canvas = canvas;
    this.#tone = tone;
  }

  add(points, lost) {
    this.#points.push(...points);
    if (lost > 0) this.#losses.push([serverNow() - 50, lost]);
    const oldest = serverNow() - SPAN_MS - BEHIND_MS;
    drop(this.#points, oldest);
    drop(this.#losses, oldest);
  }

  clear() {
    this.#points.length = this.#losses.length = 0;
  }

  // Percentiles and the share in time of what is shown; null where there is nothing.
  figures() {
    const values = this.#points.map((point) => point[1]).sort((a, b) => a - b);
    const inTime = this.#points.reduce((sum, point) => sum + point[2], 0);
    const lost = this.#losses.reduce((sum, [, count]) => sum + count, 0);
    const at = (share) => values[Math.min(Math.floor(values.length * share), values.length - 1)];
    const all = values.length + lost;
    return all ? { p50: at(0.5), p99: at(0.99), hits: inTime / all } : null;
  }

  draw(deadlineMs) {
    const { context, width, height } = fitted(this.#canvas);
    const [left, bottom] = [34, height - 5];
    const now = serverNow() - BEHIND_MS;
    const highest = this.#points.reduce((most, point) => Math.max(most, point[1]), 0);
    const wanted = Math.min(Math.max(deadlineMs * 1.45, highest * 1.1), deadlineMs * 6);
    this.#top += (wanted - this.#top) * (this.#top ? 0.12 : 1);
    const y = (ms) => bottom - (Math.min(ms, this.#top) / this.#top) * (bottom - 8);
    const x = (ms) => width - ((now - ms) / SPAN_MS) * (width - left);

    context.clearRect(0, 0, width, height);
    context.font = FONT;
    context.textBaseline = "middle";
    this.#drawAxis(context, left, width, bottom, y, deadlineMs);
    context.save();
    context.beginPath();
    context.rect(left, 0, width - left, height);
    context.clip();
    context.fillStyle = style(this.#tone);
    for (const [at, ms, inTime] of this.#points) {
      if (inTime) context.fillRect(x(at) - 1.25, y(ms) - 1.25, 2.5, 2.5);
    }
    context.fillStyle = style("--lost");
    for (const [at, ms, inTime] of this.#points) {
      if (!inTime) context.fillRect(x(at) - 1.75, y(ms) - 1.75, 3.5, 3.5);
    }
    for (const [at, count] of this.#losses) {
      const tall = Math.min(6 + count * 3, bottom - 8);
      context.fillRect(x(at) - 1, bottom - tall, 2, tall);
    }
    context.restore();
  }

  #drawAxis(context, left, width, bottom, y, deadlineMs) {
    context.strokeStyle = style("--line");
    context.lineWidth = 1;
    line(context, left, bottom + 0.5, width, bottom + 0.5);
    context.fillStyle = style("--soft");
    context.textAlign = "right";
    context.fillText("0", left - 6, bottom - 3);
    const at = Math.round(y(deadlineMs)) + 0.5;
    context.fillStyle = context.strokeStyle = style("--lost");
    context.fillText(`${deadlineMs}`, left - 6, at);
    context.setLineDash([4, 4]);
    line(context, left, at, width, at);
    context.setLineDash([]);
  }
}

export class CoreTimeline {
  #canvas;
  #spans = []; // [end, lane, tone, start]
  #lanes = new Map(); // name -> when it was last used
  #tones;

  constructor(canvas, tones) {
    this.#canvas = canvas;
    this.#tones = tones;
  }

  add({ lanes, networks, spans }) {
    for (const [lane, network, start, duration] of spans) {
      const tone = this.#tones[networks[network][1]];
      this.#spans.push([start + duration, lanes[lane], tone, start]);
      this.#lanes.set(lanes[lane], start + duration);
    }
    const oldest = serverNow() - CORES_SPAN_MS - BEHIND_MS - 200;
    this.#spans = this.#spans.filter(([end]) => end > oldest);
    for (const [lane, used] of this.#lanes) {
      if (used < oldest - 6000) this.#lanes.delete(lane);
    }
  }

  draw() {
    const { context, width, height } = fitted(this.#canvas);
    context.clearRect(0, 0, width, height);
    context.font = FONT;
    context.textBaseline = "middle";
    context.textAlign = "left";
    const names = [...this.#lanes.keys()].sort(byPlace);
    const left = Math.min(112, width * 0.28);
    const pitch = Math.min(30, (height - 18) / Math.max(names.length, 1));
    const now = serverNow() - BEHIND_MS;
    const x = (ms) => width - ((now - ms) / CORES_SPAN_MS) * (width - left);
    names.forEach((name, row) => {
      context.fillStyle = style("--faint");
      context.fillRect(left, row * pitch + 2, width - left, pitch - 4);
      context.fillStyle = style("--soft");
      context.fillText(name, 0, row * pitch + pitch / 2, left - 8);
    });
    if (!names.length) {
      context.fillStyle = style("--soft");
      context.fillText("nothing runs", 0, 14);
      return;
    }
    context.save();
    context.beginPath();
    context.rect(left, 0, width - left, height);
    context.clip();
    for (const [end, lane, tone, start] of this.#spans) {
      context.fillStyle = style(tone);
      const row = names.indexOf(lane);
      context.fillRect(x(start), row * pitch + 2, Math.max(x(end) - x(start), 0.75), pitch - 4);
    }
    context.restore();
    this.#drawAxis(context, left, width, names.length * pitch + 10);
  }

  #drawAxis(context, left, width, y) {
    context.fillStyle = style("--soft");
    const steps = width < 500 ? 2 : 4;
    for (let step = 0; step <= steps; step++) {
      const seconds = (CORES_SPAN_MS / 1000) * (1 - step / steps);
      const text = step === steps ? "now" : `−${seconds.toFixed(1)} s`;
      context.textAlign = step === steps ? "right" : step ? "center" : "left";
      context.fillText(text, left + ((width - left) * step) / steps, y);
    }
  }
}

function drop(rows, oldest) {
  let count = 0;
  while (count < rows.length && rows[count][0] < oldest) count++;
  rows.splice(0, count);
}

function line(context, fromX, fromY, toX, toY) {
  context.beginPath();
  context.moveTo(fromX, fromY);
  context.lineTo(toX, toY);
  context.stroke();
}

function byPlace(one, other) {
  const places = ["event loop", "worker", "low", "driver"];
  const place = (name) => places.findIndex((start) => name.startsWith(start));
  return place(one) - place(other) || one.localeCompare(other, undefined, { numeric: true });
}
