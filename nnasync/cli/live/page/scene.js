// The picture with its boxes: over this page's own video, or with the picture that was sent.

import { fitted, style } from "./canvas.js";

const KEPT_MS = 600; // Boxes of a stream that has stopped fade away.

// What boxes say, as one reads: line by line, from left to right.
export function read(boxes) {
  const lines = [];
  for (const box of boxes.toSorted((one, other) => one.top - other.top)) {
    const middle = (box.top + box.bottom) / 2;
    const line = lines.find(([first]) => first.top < middle && middle < first.bottom);
    if (line) line.push(box);
    else lines.push([box]);
  }
  const words = lines.map((line) => line.sort((one, other) => one.left - other.left));
  return words.map((line) => line.map((box) => box.label).join("")).join(" ");
}

export class Scene {
  #canvas;
  #video;
  #bitmap = null;
  #boxes = [];
  #seenAt = 0;

  constructor(canvas, video) {
    this.#canvas = canvas;
    this.#video = video;
  }

  async show(seen) {
    if (seen.picture) {
      const bitmap = await createImageBitmap(seen.picture);
      this.#bitmap?.close();
      this.#bitmap = bitmap;
    }
    this.#boxes = seen.boxes;
    this.#seenAt = performance.now();
  }

  clear() {
    this.#bitmap?.close();
    this.#bitmap = null;
    this.#boxes = [];
  }

  draw() {
    const { context, width, height } = fitted(this.#canvas);
    context.clearRect(0, 0, width, height);
    const area = this.#area(width, height);
    if (!area) return;
    if (this.#bitmap) {
      context.imageSmoothingQuality = "high";
      context.drawImage(this.#bitmap, area.x, area.y, area.width, area.height);
    }
    if (performance.now() - this.#seenAt < KEPT_MS) {
      for (const box of this.#boxes) this.#drawBox(context, area, box);
    }
  }

  // Where the picture is on the canvas: as large as it can be, in the middle.
  #area(width, height) {
    const wide = this.#bitmap?.width ?? this.#video.videoWidth;
    const high = this.#bitmap?.height ?? this.#video.videoHeight;
    if (!wide || !high) return null;
    const scale = Math.min(width / wide, height / high);
    return {
      x: (width - wide * scale) / 2,
      y: (height - high * scale) / 2,
      width: wide * scale,
      height: high * scale,
    };
  }

  #drawBox(context, area, box) {
    const color = style("--medium");
    const x = area.x + box.left * area.width;
    const y = area.y + box.top * area.height;
    const width = (box.right - box.left) * area.width;
    const height = (box.bottom - box.top) * area.height;
    context.lineWidth = 3;
    context.strokeStyle = color;
    context.beginPath();
    context.roundRect(x, y, width, height, 8);
    context.stroke();
    context.font = "600 15px system-ui, sans-serif";
    let text = `${box.label}  ${Math.round(box.score * 100)} %`;
    if (context.measureText(text).width + 16 > width) text = box.label;
    const wide = context.measureText(text).width + 16;
    const top = y >= 28 ? y - 24 : y;
    context.fillStyle = color;
    context.beginPath();
    context.roundRect(x, top, wide, 26, top < y ? [8, 8, 8, 0] : [8, 0, 8, 0]);
    context.fill();
    context.fillStyle = "#fff";
    context.textBaseline = "middle";
    context.fillText(text, x + 8, top + 13.5);
  }
}
