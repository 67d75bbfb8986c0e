// The state of the page in its address: a preset, and what differs from it. It holds on any host, and without one.

const MOST_TOKENS = 8;
const MOST_STEPS = 5000;
const MOST_POINTS = 60;
const LARGEST_COORDINATE = 1e3; // beyond it nothing in the plane is visible

function encodeState(name, state) {
  const base = PRESETS[name]?.state ?? {};
  const parts = new URLSearchParams();
  if (PRESETS[name]) parts.set("preset", name);
  for (const [key, value] of Object.entries(state)) {
    const text = JSON.stringify(value);
    if (text !== JSON.stringify(base[key])) parts.set(key, text);
  }
  return parts.toString();
}

function decodeState(hash) {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const name = parts.get("preset");
  const state = structuredClone(PRESETS[name]?.state ?? {});
  parts.delete("preset");
  for (const [key, text] of parts) {
    try {
      state[key] = JSON.parse(text);
    } catch {
      return null; // not an address of ours
    }
  }
  return isState(state) ? { name: PRESETS[name] ? name : null, state } : null;
}

// Whether the page can compute and draw it, as it cannot what is left of an address that was cut.
function isState(state) {
  const { scene, steps, step } = state;
  const counts = (value, low, high) => Number.isInteger(value) && value >= low && value <= high;
  const fits = counts(steps, 1, MOST_STEPS) && (step === null || step === undefined || counts(step, 0, MOST_STEPS));
  return fits && (scene === "classes" ? isClasses(state) : scene === "plane" && isPlane(state));
}

const isList = (value, low, high = low) => Array.isArray(value) && value.length >= low && value.length <= high;
const isVector = (value, low, high = low) => isList(value, low, high) && value.every((entry) => Math.abs(entry) <= LARGEST_COORDINATE && typeof entry === "number");

function isClasses({ points, classes }) {
  return isList(points, 1, MOST_POINTS) && points.every((at) => isVector(at, 2)) && isList(classes, points.length)
    && classes.every((own) => Number.isInteger(own) && own >= 0 && own < CLASS_COUNT);
}

function isPlane({ tokens, queries, labels, v, head, optimizer, norm, numerics, keep, start }) {
  if (!isList(tokens, 1, MOST_SEQUENCES) || !isList(tokens[0], 2, MOST_TOKENS)) return false;
  const [n, T] = [tokens.length, tokens[0].length];
  const keeps = ["trained", "best"].includes(keep) || (isList(keep, n) && keep.every((t) => Number.isInteger(t) && t >= 0 && t < T));
  const width = queries?.[0]?.length;
  return keeps && tokens.every((sequence) => isList(sequence, T) && sequence.every((at) => isVector(at, 2)))
    && isList(queries, n) && queries.every((z) => isVector(z, 1, MOST_TOKENS) && z.length === width && z.some((entry) => entry !== 0))
    && isList(labels, n) && labels.every((label) => label === 1 || label === -1) && isVector(v, 2) && (!start || isVector(start, 2))
    && [[HEAD_TITLES, head], [OPTIMIZER_TITLES, optimizer], [NORM_TITLES, norm], [NUMERICS_TITLES, numerics]].every(([table, name]) => Object.hasOwn(table, name))
    && !(head === "relu" && optimizer === "polyak");
}
