// anywidget's model interface over a WebSocket to `attsvm play`.
import playground from "./playground.js";

const LOST = "The server has stopped. The picture stays as it was; it goes on by itself once `attsvm play` runs again.";
const FIRST_PAUSE = 300;
const LONGEST_PAUSE = 3000;

class Model {
  #values = { request: null, answer: null, notice: "", initial: null, addressed: true };
  #listeners = new Map();
  #changed = new Set();
  #socket = null;
  #pause = FIRST_PAUSE;

  constructor() {
    this.#connect();
  }

  get(name) {
    return this.#values[name];
  }

  set(name, value) {
    this.#values[name] = value;
    this.#changed.add(name);
  }

  save_changes() {
    const request = this.#changed.has("request");
    this.#changed.clear();
    if (request && this.#socket?.readyState === WebSocket.OPEN) {
      this.#socket.send(JSON.stringify(this.#values.request));
    }
  }

  on(event, listener) {
    if (!this.#listeners.has(event)) this.#listeners.set(event, new Set());
    this.#listeners.get(event).add(listener);
  }

  off(event, listener) {
    this.#listeners.get(event)?.delete(listener);
  }

  #receive(name, value) {
    this.#values[name] = value;
    for (const listener of this.#listeners.get(`change:${name}`) ?? []) listener();
  }

  #connect() {
    const socket = new WebSocket(`ws://${location.host}/model`);
    this.#socket = socket;
    socket.onopen = () => {
      this.#pause = FIRST_PAUSE;
      this.#receive("notice", "");
    };
    socket.onmessage = (event) => this.#receive("answer", JSON.parse(event.data));
    socket.onclose = () => {
      this.#receive("notice", LOST);
      setTimeout(() => this.#connect(), this.#pause);
      this.#pause = Math.min(2 * this.#pause, LONGEST_PAUSE);
    };
  }
}

playground.render({ model: new Model(), el: document.getElementById("playground") });
