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
  return Object.keys(state).length ? { name: PRESETS[name] ? name : null, state } : null;
}
