// Buttons of which one is chosen, and the cards of load, network and driver.

const HOLD_MS = 1000;

// Makes `parent` a group of such buttons; `choose` is called with the value that a person picks.
export function segments(parent, choices, choose) {
  const buttons = choices.map(({ value, text, alarm }) => {
    const button = document.createElement("button");
    button.type = "button";
    button.setAttribute("role", "radio");
    button.dataset.value = value;
    button.textContent = text;
    if (alarm) button.classList.add("alarm");
    button.onclick = () => {
      select(value);
      choose(value);
    };
    return button;
  });
  parent.append(...buttons);
  function select(value) {
    for (const button of buttons) {
      const isChosen = button.dataset.value === String(value);
      button.setAttribute("aria-checked", String(isChosen));
      button.tabIndex = isChosen ? 0 : -1;
    }
  }
  parent.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const place = buttons.indexOf(document.activeElement);
    if (!step || place < 0) return;
    const next = buttons[(place + step + buttons.length) % buttons.length];
    next.focus();
    next.click();
    event.preventDefault();
  };
  return { select };
}

export class Controls {
  #load;
  #network;
  #changedAt = -Infinity;
  #deaths = null;
  #log;

  constructor(send, log) {
    this.#log = log;
    const changing = (command) => {
      this.#changedAt = performance.now();
      send(command);
    };
    const counts = [0, 1, 2, 3, 4].map((value) => ({ value, text: String(value) }));
    this.#load = segments(document.getElementById("load"), counts, (clients) =>
      changing({ type: "load", clients }),
    );
    const states = [
      { value: "normal", text: "normal" },
      { value: "slow", text: "slow" },
      { value: "cut", text: "cut", alarm: true },
    ];
    this.#network = segments(document.getElementById("network"), states, (state) =>
      changing({ type: "network", state }),
    );
    document.getElementById("kill").onclick = () => send({ type: "kill" });
  }

  greet({ driver }) {
    if (driver) return;
    document.getElementById("driver-hint").textContent =
      "No engine is installed that runs in a process of its own: pip install 'nnasync[engines]'.";
    document.getElementById("driver-state").textContent = "none";
  }

  update(tick, driver) {
    if (performance.now() - this.#changedAt > HOLD_MS) {
      this.#load.select(tick.load_clients);
      this.#network.select(tick.network);
    }
    setText("load-rate", tick.load_clients ? `${tick.load_hz.toFixed(0)} answers a second` : "");
    const lost = Object.values(tick.streams).reduce((sum, stream) => sum + stream.lost, 0);
    setText("network-lost", lost ? `${lost} lost` : "");
    if (!driver) return;
    const isAlive = tick.driver_pid !== 0;
    const deaths = tick.driver_deaths ? `, killed ${times(tick.driver_deaths)}` : "";
    setText("driver-state", (isAlive ? `process ${tick.driver_pid}` : "starting") + deaths);
    document.getElementById("kill").disabled = !isAlive;
    this.#watchDriver(tick);
  }

  #watchDriver({ driver_pid: pid, driver_deaths: deaths }) {
    const before = this.#deaths ?? { deaths, pid };
    if (before.pid !== pid && pid) this.#log(`the driver is there again, as process ${pid}`);
    this.#deaths = { deaths, pid: pid || before.pid };
  }
}

function times(count) {
  return count === 1 ? "once" : `${count} times`;
}

function setText(id, text) {
  const element = document.getElementById(id);
  if (element.textContent !== text) element.textContent = text;
}
