// The page: what the server tells goes to the parts that show it, what people do goes to the server.

import { Camera } from "./camera.js";
import * as clock from "./clock.js";
import { Controls } from "./controls.js";
import { CoreTimeline } from "./plots.js";
import { read, Scene } from "./scene.js";
import { Socket } from "./socket.js";
import { StreamCard } from "./streams.js";

const WORDS_KEPT = 12;
const LOG_KEPT = 40;
const LEGEND = { HIGH: "hears", MEDIUM: "sees", LOW: "LOW load" };
const TONES = { HIGH: "--high", MEDIUM: "--medium", LOW: "--low" };

const get = (id) => document.getElementById(id);
const socket = new Socket();
const send = (command) => socket.send(command);
const scene = new Scene(get("scene"), get("camera"));
const timeline = new CoreTimeline(get("timeline"), TONES);
const controls = new Controls(send, log);
const cards = { audio: new StreamCard("audio", get("streams"), send) };
cards.video = new StreamCard("video", get("streams"), send);
const camera = new Camera(get("camera"), send);
let hello = null;
let playing = ""; // "camera", "clips", or nothing of this page's own.

socket.addEventListener("state", ({ detail }) => {
  get("connection").dataset.state = detail.state;
  get("connection").textContent = detail.text;
  if (detail.state !== "open") clock.reset();
});

socket.addEventListener("hello", ({ detail }) => {
  hello = detail;
  controls.greet(hello);
  get("use-camera").hidden = !hello.takes_cameras;
  if (hello.source) showWelcome(false);
  else if (playing) play(playing); // The connection was lost, and the session with it.
  else showWelcome(true);
});

socket.addEventListener("answer", ({ detail }) => camera.answer(detail.sdp));

socket.addEventListener("ended", ({ detail }) => {
  if (!detail.reason) return;
  log(detail.reason, "error");
  stop();
});

socket.addEventListener("seen", ({ detail }) => {
  scene.show(detail);
  get("sees").textContent = read(detail.boxes) || "–";
  get("sees-latency").textContent = `${detail.latency_ms.toFixed(1)} ms`;
});

socket.addEventListener("heard", ({ detail }) => {
  get("hears").textContent = detail.word;
  get("hears-latency").textContent = `${detail.latency_ms.toFixed(1)} ms`;
  const word = document.createElement("li");
  word.textContent = detail.word;
  get("words").prepend(word);
  while (get("words").children.length > WORDS_KEPT) get("words").lastChild.remove();
});

socket.addEventListener("notice", ({ detail }) => log(detail.text, detail.kind));

socket.addEventListener("tick", ({ detail: tick }) => {
  clock.hear(tick.now_ms);
  for (const [name, card] of Object.entries(cards)) {
    card.set(tick.settings[name]);
    if (tick.streams[name]) card.update(tick.streams[name]);
  }
  timeline.add(tick);
  controls.update(tick, hello?.driver);
  const pages = tick.viewers > 1 ? `connected, ${tick.viewers} pages are open` : "connected";
  if (get("connection").textContent !== pages) get("connection").textContent = pages;
  get("cpu-machine").style.width = `${tick.machine_busy * 100}%`;
  get("cpu-process").style.width = `${tick.process_busy * 100}%`;
  get("cpu-text").textContent = `${hello?.cores ?? ""} cores ${Math.round(tick.machine_busy * 100)} %`;
});

get("use-camera").onclick = () => play("camera");
get("use-clips").onclick = () => play("clips");
get("stop").onclick = () => {
  send({ type: "stop" });
  stop();
};

async function play(what) {
  playing = what;
  showWelcome(false);
  try {
    if (what === "camera") await camera.offer();
    else send({ type: "clips" });
  } catch (error) {
    log(camera.explain(error), "error");
    stop();
  }
}

function stop() {
  playing = "";
  camera.stop();
  scene.clear();
  showWelcome(true);
}

function showWelcome(isShown) {
  get("welcome").hidden = !isShown;
  get("stop").hidden = isShown || Boolean(hello?.source);
}

function log(text, kind = "info") {
  const entry = document.createElement("li");
  const time = document.createElement("time");
  time.textContent = new Date().toLocaleTimeString();
  const told = document.createElement("span");
  told.textContent = text;
  told.className = kind;
  entry.append(time, told);
  get("log").prepend(entry);
  while (get("log").children.length > LOG_KEPT) get("log").lastChild.remove();
}

function draw() {
  scene.draw();
  for (const card of Object.values(cards)) card.draw();
  timeline.draw();
  requestAnimationFrame(draw);
}

for (const [priority, text] of Object.entries(LEGEND)) {
  const entry = document.createElement("li");
  entry.textContent = text;
  entry.style.setProperty("--tone", `var(${TONES[priority]})`);
  get("legend").append(entry);
}
socket.open();
requestAnimationFrame(draw);
