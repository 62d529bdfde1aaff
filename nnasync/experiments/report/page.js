const DATA = JSON.parse(document.getElementById("data").textContent);

// -- which value of the sweep is shown

function select(x) {
  for (const each of document.querySelectorAll(".at")) each.classList.toggle("now", each.dataset.x === x);
  for (const each of document.querySelectorAll("button[data-x]"))
    each.setAttribute("aria-pressed", String(each.dataset.x === x));
}
for (const button of document.querySelectorAll("button[data-x]"))
  button.onclick = () => select(button.dataset.x);
const shown = document.querySelectorAll("button[data-x]");
if (shown.length) select(shown[shown.length - 1].dataset.x);
else for (const each of document.querySelectorAll(".at")) each.classList.add("now");

// -- who had which core

const canvas = document.getElementById("cores-canvas"), tip = document.getElementById("tip");
const LEFT = 118, TOP = 24, CORE = 26, ROW = 9, ROWS = 6, GAP = 12;
let run = DATA.runs[0], from = 0, to = 1, rows = [];
const css = name => getComputedStyle(document.body).getPropertyValue(name).trim();
const color = stream => css("--k" + stream % 8);
const inView = (a, b) => b >= from && a <= to;

// Requests that overlap lie one below the other, as far as there are rows.
function stacked(excerpt) {
  const rowOf = new Map(), deepest = excerpt.streams.map(() => 1), free = excerpt.streams.map(() => []);
  for (const [stream, request, planned, ended] of excerpt.lifetimes) {
    const ends = free[stream];
    let row = ends.findIndex(end => end <= planned);
    if (row < 0) row = ends.length < ROWS ? ends.length : ROWS - 1;
    ends[row] = Math.max(ends[row] || 0, ended);
    deepest[stream] = Math.max(deepest[stream], ends.length);
    rowOf.set(stream + ":" + request, row);
  }
  return {rowOf, deepest};
}

function choose(index) {
  run = DATA.runs[index];
  run.stack ||= stacked(run);
  [from, to] = [0, Math.min(run.until, Math.max(run.window, 1e-3))];
  draw();
}

function layout() {
  rows = [];
  let y = TOP;
  for (let core = 0; core < run.cores; core++) { rows.push({core, y, height: CORE}); y += CORE + 4; }
  y += GAP;
  run.streams.forEach((name, stream) => {
    const height = run.stack.deepest[stream] * ROW + 4;
    rows.push({stream, y, height});
    y += height + 6;
  });
  return y + 4;
}

function surface(height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth;
  canvas.style.height = height + "px";
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const c = canvas.getContext("2d");
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  c.clearRect(0, 0, width, height);
  c.font = "12.5px system-ui, sans-serif";
  c.textBaseline = "middle";
  return [c, width];
}

function time(ms, step) {
  const digits = step >= 1 ? 0 : Math.min(Math.ceil(-Math.log10(step)), 4);
  return ms.toFixed(digits) + " ms";
}

function ruler(c, width, height, x) {
  const power = 10 ** Math.floor(Math.log10((to - from) / Math.max(width / 110, 2)));
  const step = [1, 2, 5, 10].map(part => part * power).find(s => (to - from) / s < width / 100) || 10 * power;
  c.textAlign = "center";
  for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
    c.strokeStyle = css("--faint");
    c.beginPath(); c.moveTo(x(t), TOP - 4); c.lineTo(x(t), height); c.stroke();
    c.fillStyle = css("--soft");
    if (x(t) < width - 24) c.fillText(time(t, step), x(t), 10);
  }
}

function shortened(c, text, width) {
  if (c.measureText(text).width <= width) return text;
  let count = text.length;
  while (count > 1 && c.measureText(text.slice(0, count) + "…").width > width) count--;
  return text.slice(0, count) + "…";
}

function bar(c, x, a, b, y, height) {
  const left = Math.max(x(a), LEFT), right = x(b);
  if (right >= LEFT) c.fillRect(left, y, Math.max(right - left, 0.8), height);
}

function draw() {
  if (!canvas || !run) return;
  const height = layout(), [c, width] = surface(height);
  const x = t => LEFT + (t - from) / (to - from) * (width - LEFT);
  for (const row of rows) {
    c.fillStyle = css("--shade");
    c.fillRect(LEFT, row.y, width - LEFT, row.height);
  }
  ruler(c, width, height, x);
  const streams = rows.slice(run.cores);
  for (const [core, stream, request, began, ended] of run.core_runs) {
    if (!inView(began, ended)) continue;
    c.fillStyle = color(stream);
    bar(c, x, began, ended, rows[core].y + 3, CORE - 6);
  }
  for (const [stream, request, planned, ended, lost] of run.lifetimes) {
    if (!inView(planned, ended)) continue;
    const y = streams[stream].y + 2 + run.stack.rowOf.get(stream + ":" + request) * ROW;
    c.globalAlpha = 0.3; c.fillStyle = color(stream);
    bar(c, x, planned, ended, y, ROW - 2);
    c.globalAlpha = 1;
    if (planned >= from && to - from < run.window * 6) { c.fillStyle = css("--ink"); c.fillRect(x(planned) - 0.5, y - 1, 1, ROW); }
    if (lost && ended >= from) cross(c, x(ended), y + ROW / 2 - 1);
  }
  for (const [core, stream, request, began, ended] of run.core_runs) {
    const row = run.stack.rowOf.get(stream + ":" + request);
    if (row === undefined || !inView(began, ended)) continue;
    c.fillStyle = color(stream);
    bar(c, x, began, ended, streams[stream].y + 2 + row * ROW, ROW - 2);
  }
  c.textAlign = "left";
  rows.forEach(row => {
    c.fillStyle = css("--paper");
    c.fillRect(0, row.y, LEFT - 4, row.height);
    c.fillStyle = css("--ink");
    const name = row.core === undefined ? run.streams[row.stream] : "core " + row.core;
    c.fillText(shortened(c, name, LEFT - 10), 0, row.y + row.height / 2);
  });
  document.getElementById("range").textContent =
    `${from.toFixed(2)} to ${to.toFixed(2)} ms of ${run.until.toFixed(0)} ms recorded`;
}

function cross(c, x, y) {
  c.strokeStyle = css("--lost"); c.lineWidth = 1.8;
  c.beginPath(); c.moveTo(x - 3.5, y - 3.5); c.lineTo(x + 3.5, y + 3.5);
  c.moveTo(x + 3.5, y - 3.5); c.lineTo(x - 3.5, y + 3.5); c.stroke(); c.lineWidth = 1;
}

function show(a, b) {
  const span = Math.min(Math.max(b - a, 0.01), run.until);
  a = Math.min(Math.max(a, 0), run.until - span);
  [from, to] = [a, a + span];
  requestAnimationFrame(draw);
}
function zoom(factor, center) { show(center - (center - from) * factor, center + (to - center) * factor); }
const timeAt = event => {
  const box = canvas.getBoundingClientRect();
  return from + (event.clientX - box.left - LEFT) / (box.width - LEFT) * (to - from);
};

function told(event) {
  const y = event.clientY - canvas.getBoundingClientRect().top, at = timeAt(event);
  const row = rows.find(each => y >= each.y && y <= each.y + each.height);
  if (!row || at < from) return "";
  const near = 2 * (to - from) / canvas.clientWidth, ms = t => t.toFixed(3) + " ms";
  if (row.core !== undefined) {
    const found = run.core_runs.find(r => r[0] === row.core && r[3] - near <= at && at <= r[4] + near);
    return found ? `${run.streams[found[1]]}: ${ms(found[4] - found[3])} on core ${row.core}` : "";
  }
  const depth = Math.floor((y - row.y - 2) / ROW);
  const found = run.lifetimes.find(r => r[0] === row.stream && r[2] - near <= at && at <= r[3] + near &&
    run.stack.rowOf.get(r[0] + ":" + r[1]) === depth);
  return found ? `asked at ${ms(found[2])}, ended after ${ms(found[3] - found[2])}${found[4] ? ": no answer in time" : ""}` : "";
}

if (canvas && run) {
  let grip = null;
  canvas.addEventListener("wheel", event => {
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      const move = event.deltaX / canvas.clientWidth * (to - from);
      show(from + move, to + move);
    } else zoom(Math.exp(event.deltaY * 0.0018), timeAt(event));
  }, {passive: false});
  canvas.addEventListener("pointerdown", event => {
    grip = {x: event.clientX, from, to};
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add("dragged");
  });
  canvas.addEventListener("pointerup", () => { grip = null; canvas.classList.remove("dragged"); });
  canvas.addEventListener("pointercancel", () => { grip = null; canvas.classList.remove("dragged"); });
  canvas.addEventListener("pointermove", event => {
    if (grip) {
      const move = (grip.x - event.clientX) / (canvas.clientWidth - LEFT) * (grip.to - grip.from);
      show(grip.from + move, grip.to + move);
      return;
    }
    const text = told(event);
    tip.textContent = text;
    tip.style.display = text ? "block" : "none";
    tip.style.left = Math.min(event.clientX + 14, innerWidth - 270) + "px";
    tip.style.top = event.clientY + 16 + "px";
  });
  canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
  canvas.addEventListener("keydown", event => {
    const step = (to - from) / 5, center = (from + to) / 2;
    if (event.key === "ArrowLeft") show(from - step, to - step);
    else if (event.key === "ArrowRight") show(from + step, to + step);
    else if (event.key === "+" || event.key === "ArrowUp") zoom(0.7, center);
    else if (event.key === "-" || event.key === "ArrowDown") zoom(1 / 0.7, center);
    else return;
    event.preventDefault();
  });
  document.getElementById("closer").onclick = () => zoom(0.5, (from + to) / 2);
  document.getElementById("wider").onclick = () => zoom(2, (from + to) / 2);
  document.getElementById("all").onclick = () => show(0, run.until);
  document.getElementById("lost").onclick = () => {
    const ends = run.lifetimes.filter(r => r[4]).map(r => r[3]).sort((a, b) => a - b);
    if (!ends.length) return;
    const middle = (from + to) / 2, half = (to - from) / 2;
    const at = ends.find(t => t > middle + half / 50) ?? ends[0];
    show(at - half, at + half);
  };
  const picker = document.getElementById("run");
  picker.onchange = () => choose(Number(picker.value));
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(canvas.parentElement);
  for (const query of ["(prefers-color-scheme: dark)", "print"])
    matchMedia(query).addEventListener("change", draw);
  choose(Number(picker.value));
}
whenAlone(draw);
