// The server's clock on this page: the message that came quickest tells how far the two are apart.

const FORGET_MS = 0.5; // A tick, so that a drift of the clocks is followed.

let offset = -Infinity;

export function hear(serverMs) {
  offset = Math.max(offset - FORGET_MS, serverMs - performance.now());
}

export function reset() {
  offset = -Infinity;
}

export function serverNow() {
  return performance.now() + offset;
}
