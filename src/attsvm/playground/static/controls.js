// What can be chosen: every setting is a native control, so that keyboards, fingers and screen readers know it.

const OPTIMIZER_TITLES = {
  normalized_gd: "normalised descent",
  gd: "gradient descent",
  momentum: "dual momentum",
  polyak: "Polyak steps",
  mirror: "mirror descent, ℓ₃",
  sign: "sign descent",
  signum: "Signum",
  lion: "Lion",
  adam: "Adam",
  muon: "Muon",
  spectral: "spectral descent",
};
const NORM_TITLES = {
  frobenius: "Frobenius",
  nuclear: "nuclear",
  spectral: "spectral",
  max: "largest entry",
  1: "sum of entries",
  3: "entrywise ℓ₃",
};
const HEAD_TITLES = { linear: "linear, v·x", relu: "ReLU, v·ReLU(x)" };
const NUMERICS_TITLES = { exact: "exact gradients", float32: "plain float32" };
const KEEP_TITLES = { trained: "as trained", best: "best scores", hand: "by hand" };
const STEPS = [50, 100, 200, 500, 1000, 2000, 5000];
// A preset or a link may have another number.
const stepChoices = (steps) => [...new Set([...STEPS, steps])].sort((a, b) => a - b).map((k) => [k, k.toLocaleString("en")]);
const MOST_SEQUENCES = 3;
// What a new sequence or token is made of, by place.
const SPARE_QUERIES = [[1, 0], [0, 1], [0.6, -0.8]];
const SPARE_TOKENS = [[0.8, 0.9], [-0.9, 0.4], [0.3, -0.9], [-0.4, -0.3], [1.1, -0.2], [-0.1, 1.2], [-1.2, -0.8], [0.5, 0.2]];

function element(parent, tag, attributes = {}, text = "") {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (text) node.textContent = text;
  parent.append(node);
  return node;
}

// D3 writes what is there already: the browser then lays it out again, sixty times a second.
const writes = Object.getPrototypeOf(d3.select(null));
const { attr: readAttribute, text: readText } = writes;
const valueOf = (value, node, args) => (typeof value === "function" ? value.apply(node, args) : value);
writes.attr = function attr(name, value) {
  if (arguments.length < 2) return readAttribute.call(this, name);
  return this.each(function write(...args) {
    const next = valueOf(value, this, args);
    if (next === null || next === undefined) this.removeAttribute(name);
    else if (this.getAttribute(name) !== String(next)) this.setAttribute(name, next);
  });
};
writes.text = function text(value) {
  if (!arguments.length) return readText.call(this);
  return this.each(function write(...args) {
    const next = String(valueOf(value, this, args) ?? "");
    if (this.textContent !== next) this.textContent = next;
  });
};

// Widths are read once and forgotten on a resize: to read one in the middle of drawing lays the whole page out.
let widths = new WeakMap();

function widthOf(node) {
  if (!widths.has(node)) widths.set(node, node.clientWidth);
  return widths.get(node);
}

// A select with its label; values keep their type.
function chooser(parent, name, title, options, current, choose) {
  const label = element(parent, "label", { class: "field" });
  element(label, "span", {}, title);
  const select = element(label, "select", { name });
  for (const [value, text] of options) {
    const option = element(select, "option", {}, text);
    option.value = String(value);
  }
  select.value = String(current);
  select.addEventListener("change", () => choose(options.find(([value]) => String(value) === select.value)[0]));
  return select;
}

function numberOr(text) {
  return /^\d+$/.test(text) ? Number(text) : text;
}

function withSequences(state, count) {
  const T = state.tokens[0].length;
  const width = state.queries[0].length;
  const next = structuredClone(state);
  while (next.tokens.length < count) {
    const i = next.tokens.length;
    next.tokens.push(Array.from({ length: T }, (_, t) => {
      const [x, y] = SPARE_TOKENS[(t + 3 * i) % SPARE_TOKENS.length];
      return [x, y];
    }));
    next.queries.push(Array.from({ length: width }, (_, k) => SPARE_QUERIES[i][k] ?? 0));
    if (!next.queries[i].some((entry) => entry !== 0)) next.queries[i][0] = 1;
    next.labels.push(1);
    if (Array.isArray(next.keep)) next.keep.push(0);
  }
  for (const key of ["tokens", "queries", "labels"]) next[key].length = count;
  if (Array.isArray(next.keep)) next.keep.length = count;
  return next;
}

function withTokens(state, count) {
  const next = structuredClone(state);
  next.tokens.forEach((sequence, i) => {
    while (sequence.length < count) sequence.push([...SPARE_TOKENS[(sequence.length + 3 * i) % SPARE_TOKENS.length]]);
    sequence.length = count;
  });
  if (Array.isArray(next.keep)) next.keep = next.keep.map((token) => Math.min(token, count - 1));
  return next;
}

// `change` is given what makes the next state of the current one: what was dragged since these were drawn stays.
function planeControls(parent, state, change) {
  const titles = (table) => Object.entries(table).map(([key, text]) => [numberOr(key), text]);
  const set = (key) => (value) => change((now) => ({ ...now, [key]: value }));
  const counts = (low, high) => Array.from({ length: high - low + 1 }, (_, k) => [low + k, String(low + k)]);
  chooser(parent, "sequences", "Sequences", counts(1, MOST_SEQUENCES), state.tokens.length, (count) =>
    change((now) => withSequences(now, count)));
  chooser(parent, "tokens", "Tokens in each", counts(2, 8), state.tokens[0].length, (count) => change((now) => withTokens(now, count)));
  const labels = element(parent, "div", { class: "field", role: "group", "aria-label": "Labels" });
  element(labels, "span", {}, "Labels");
  const row = element(labels, "div", { class: "toggles" });
  state.labels.forEach((label, i) => {
    const name = `Label of sequence ${i + 1}: ${label > 0 ? "plus one" : "minus one"}`;
    const button = element(row, "button", { type: "button", name: `label-${i}`, class: `sequence-${i}`, "aria-label": name }, label > 0 ? "+1" : "−1");
    button.addEventListener("click", () => change((now) => ({ ...now, labels: now.labels.map((y, k) => (k === i ? -y : y)) })));
  });
  chooser(parent, "head", "Head", titles(HEAD_TITLES), state.head, (head) => {
    // Polyak's step needs the least risk there is, which is known of a linear head only.
    change((now) => ({ ...now, head, optimizer: head === "relu" && now.optimizer === "polyak" ? "normalized_gd" : now.optimizer }));
  });
  const optimizers = titles(OPTIMIZER_TITLES).filter(([name]) => name !== "polyak" || state.head === "linear");
  chooser(parent, "optimizer", "Optimiser of W", optimizers, state.optimizer, set("optimizer"));
  chooser(parent, "steps", "Steps", stepChoices(state.steps), state.steps, set("steps"));
  chooser(parent, "numerics", "Numerics", titles(NUMERICS_TITLES), state.numerics, set("numerics"));
  if (state.head === "relu") return; // its tokens are those that keep attention, its norms those of W and of K, Q
  chooser(parent, "norm", "Norm of the SVM", titles(NORM_TITLES), state.norm, set("norm"));
  const hand = Array.isArray(state.keep);
  const keeps = titles(KEEP_TITLES).filter(([name]) => hand || name !== "hand");
  chooser(parent, "keep", "Selected tokens", keeps, hand ? "hand" : state.keep, set("keep"));
}

function classesControls(parent, state, change) {
  chooser(parent, "steps", "Steps", stepChoices(state.steps), state.steps, (steps) => change((now) => ({ ...now, steps })));
}
