// The socket to the server: opened again after it was lost, with growing pauses.

const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 8000;

export class Socket extends EventTarget {
  #socket = null;
  #pauseMs = FIRST_PAUSE_MS;

  open() {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}/socket${location.search}`);
    socket.binaryType = "arraybuffer";
    socket.onopen = () => this.#tell("state", { state: "open", text: "connected" });
    socket.onmessage = ({ data }) => this.#take(data);
    socket.onclose = (event) => this.#lost(event);
    this.#socket = socket;
    this.#tell("state", { state: "connecting", text: "connecting" });
  }

  send(command) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(command));
  }

  #take(data) {
    this.#pauseMs = FIRST_PAUSE_MS;
    if (typeof data === "string") {
      const message = JSON.parse(data);
      this.#tell(message.type, message);
      return;
    }
    const length = new DataView(data).getUint32(0);
    const seen = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, length)));
    seen.picture = new Blob([new Uint8Array(data, 4 + length)], { type: "image/jpeg" });
    this.#tell("seen", seen);
  }

  #lost({ reason }) {
    const text = reason || "connection lost, trying again";
    this.#tell("state", { state: "closed", text });
    setTimeout(() => this.open(), this.#pauseMs * (0.75 + Math.random() / 2));
    this.#pauseMs = Math.min(this.#pauseMs * 2, LONGEST_PAUSE_MS);
  }

  #tell(kind, detail) {
    this.dispatchEvent(new CustomEvent(kind, { detail }));
  }
}
