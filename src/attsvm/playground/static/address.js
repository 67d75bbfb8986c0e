// The state of the page in its address: a preset, and what differs from it.

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
  return drawable(state) ? { name: PRESETS[name] ? name : null, state } : null;
}

// Whether the page can draw it, as it cannot what is left of an address that was cut; the model checks the rest.
function drawable({ scene, tokens, queries, labels, v, start, points, classes }) {
  const lists = (...all) => all.every((one) => Array.isArray(one) && one.length > 0);
  const places = (all) => lists(all) && all.every((at) => lists(at) && at.length === 2 && at.every(Number.isFinite));
  if (scene === "classes") return places(points) && lists(classes) && classes.length === points.length;
  return scene === "plane" && lists(tokens, queries, labels) && tokens.every(places) && tokens.length <= MOST_SEQUENCES
    && queries.length === tokens.length && lists(...queries) && labels.length === tokens.length
    && places([v]) && (!start || places([start]));
}
