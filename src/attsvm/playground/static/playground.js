// The page: what the model answers is drawn, what is dragged or chosen is asked for.
//
// Of drags only the newest counts. One request is under way at a time; what happens meanwhile replaces what waits, and
// goes out with the answer. When the hand rests, the same state is asked for once more, in full.

const REST = 160; // milliseconds of stillness after an arrow key
const MISREAD = "The address names no picture of this page; perhaps it was cut. The picture shown is another.";

function render({ model, el }) {
  const addressed = model.get("addressed");
  const own = model.get("initial");
  const there = addressed && location.hash.length > 1 ? decodeState(location.hash) : null;
  let misread = addressed && location.hash.length > 1 && !there;
  let { name, state } = there || own || { name: Object.keys(PRESETS)[0] };
  state = structuredClone(state ?? PRESETS[name].state);
  let origin = structuredClone(state);
  let picture = null;
  let scene = null;
  let shown = null; // the kind of scene on the page

  const root = element(el, "div", { class: "attsvm-play" });
  const header = element(root, "div");
  element(header, addressed ? "h1" : "h2", {}, "Attention as a support vector machine");
  const about = element(header, "p", { class: "about" });
  const bar = element(header, "div", { class: "bar" });
  const notice = element(root, "p", { class: "notice", role: "alert" });
  const verdict = element(root, "p", { class: "verdict", role: "status", "aria-live": "polite" });
  const columns = element(root, "div", { class: "columns" });
  const stage = element(columns, "div", { class: "stage" });
  const drawing = element(stage, "div", { class: "drawing" });
  const legend = element(stage, "ul", { class: "legend", "aria-label": "Key to the picture" });
  const side = element(columns, "div", { class: "side" });
  const facts = element(side, "dl", { class: "facts" });
  const bars = element(side, "div", { class: "attention" });
  const curves = element(side, "div", { class: "curves" });
  const loss = element(curves, "div");
  const correlations = element(curves, "div");
  const controls = element(root, "form", { class: "controls", "aria-label": "Settings" });
  controls.addEventListener("submit", (event) => event.preventDefault());
  const table = element(root, "details", { class: "numbers" });
  element(table, "summary", {}, "Every token in numbers");
  const cells = element(table, "div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Every token in numbers" });
  const script = element(root, "details", { class: "script" });
  element(script, "summary", {}, "The same numbers in Python");
  const code = element(script, "pre", { tabindex: 0, role: "region", "aria-label": "Script" });
  const pace = element(root, "p", { class: "pace" });

  const titles = Object.entries(PRESETS).map(([key, preset]) => [key, preset.title]);
  if (own) titles.unshift(["", own.title]);
  const preset = chooser(bar, "preset", "Start from", titles, name ?? "", (key) => {
    name = key || null;
    tell(false);
    if (addressed) history.pushState(null, "", location.href); // the way back to the picture before
    load(structuredClone(key ? PRESETS[key].state : own.state));
  });
  const button = (text, act) => element(bar, "button", { type: "button" }, text).addEventListener("click", act);
  button("Start again", () => load(structuredClone(origin)));
  button("Copy as Python", (event) => copy(event.target, picture?.script ?? "", script));
  if (addressed) button("Copy link", (event) => copy(event.target, location.href, null));

  // ---- asking and answering

  let seq = 0;
  let asked = null;
  let wanted = null;
  let resting = null;
  const drawn = []; // times of the answers drawn within a second

  function want(draft) {
    wanted = { draft };
    pump();
  }

  function pump() {
    if (!wanted || asked?.draft) return;
    seq += 1;
    asked = { seq, draft: wanted.draft, at: performance.now() };
    wanted = null;
    model.set("request", { seq, draft: asked.draft, state });
    model.save_changes();
  }

  function answered() {
    const answer = model.get("answer");
    if (!answer || answer.seq !== asked?.seq) return;
    const { at, draft } = asked;
    asked = null;
    if (answer.error) {
      say({ tone: "bad", word: "Not drawn", sentence: answer.error }, true);
    } else {
      picture = answer;
      draw();
      measure(at, draft);
    }
    pump();
  }

  function measure(at, draft) {
    const now = performance.now();
    drawn.push(now);
    while (drawn[0] < now - 1000) drawn.shift();
    root.dataset.answered = seq;
    root.dataset.draft = draft;
    root.dataset.latency = (now - at).toFixed(1);
    if (draft) pace.textContent = `${drawn.length} updates in the last second, ${(now - at).toFixed(0)} ms each`;
  }

  function moved(part, live, key, spoken) {
    tell(false);
    state = { ...state, ...part };
    if (live) {
      scene.follow(state, matches(picture) ? picture : null);
      want(true);
    } else {
      settle();
    }
    clearTimeout(resting);
    if (key) resting = setTimeout(settle, REST);
    if (key && spoken) pace.textContent = spoken;
  }

  function settle() {
    if (addressed) history.replaceState(null, "", `#${encodeState(name, state)}`);
    want(false);
  }

  function change(edit) {
    const next = edit(state);
    const focus = root.getRootNode().activeElement?.name; // marimo puts the page into a shadow tree
    const sizes = (one) => (one.tokens ? `${one.tokens.length} ${one.tokens[0].length}` : "");
    const refit = sizes(next) !== sizes(state) || next.basins !== state.basins;
    state = next;
    tell(false);
    if (refit) scene.fit(state);
    drawControls();
    controls.elements[focus]?.focus();
    scene.draw(state, matches(picture) ? picture : null);
    settle();
  }

  function keep(i, t) {
    const kept = Array.isArray(state.keep) ? [...state.keep] : [...picture.runs.W.kept];
    kept[i] = t;
    change((now) => ({ ...now, keep: kept }));
  }

  // Whether a picture is of the same sequences and tokens, so that it can stay until the next one is there.
  function matches(one) {
    if (!one || one.scene !== state.scene) return false;
    return state.scene === "classes" || (one.scores.length === state.tokens.length && one.scores[0].length === state.tokens[0].length);
  }

  // ---- drawing

  function load(next) {
    state = next;
    origin = structuredClone(next);
    picture = null;
    if (shown !== state.scene) {
      drawing.replaceChildren();
      scene = state.scene === "classes" ? makeClasses(drawing, moved) : makePlane(drawing, moved, keep);
      shown = state.scene;
    }
    scene.forget();
    scene.fit(state);
    root.dataset.scene = state.scene;
    preset.value = name ?? "";
    about.textContent = name ? PRESETS[name].about : own?.about ?? "";
    drawControls();
    scene.draw(state, null);
    settle();
  }

  function drawControls() {
    controls.replaceChildren();
    (state.scene === "classes" ? classesControls : planeControls)(controls, state, change);
  }

  function say({ tone, word, sentence }, aloud) {
    verdict.className = `verdict ${tone}`;
    // A screen reader hears the verdict when the hand rests, not thirty times a second.
    verdict.setAttribute("aria-live", aloud ? "polite" : "off");
    verdict.replaceChildren();
    element(verdict, "strong", {}, `${word}.`);
    verdict.append(` ${sentence}`);
  }

  function draw() {
    if (!matches(picture)) return;
    scene.draw(state, picture);
    say(picture.verdict, !picture.draft);
    if (picture.scene === "plane") {
      planeLegend(legend, state, picture);
      drawFacts();
      drawBars(bars, state, picture);
      drawCurves(loss, correlations, picture.runs);
      if (!picture.draft) drawTable();
    } else {
      classesLegend(legend);
    }
    if (!picture.draft) code.textContent = picture.script;
  }

  function drawFacts() {
    const { W, KQ } = picture.runs;
    const gap = (run) => (run.gap === null ? "none" : run.gap === 0 ? "0" : d3.format(".1e")(run.gap).replace("−", "-"));
    const rows = [
      ["Status", W.status.toLowerCase().replace("_", " ")],
      [`SVM, ${NORM_TITLES[state.head === "relu" ? "frobenius" : state.norm]} norm`, W.objective === null ? "none" : d3.format(".6~f")(W.objective)],
      ["Certified gap", gap(W)],
      ["Correlation of W", near(W)],
    ];
    if (!state.start) rows.push(["Correlation of K Qᵀ", KQ ? near(KQ) : "when you let go"]);
    if (picture.runs.exact) rows.push(["In exact arithmetic", near(picture.runs.exact)]);
    const groups = d3.select(facts).selectAll("div").data(rows);
    const entered = groups.enter().append("div");
    entered.append("dt");
    entered.append("dd");
    groups.exit().remove();
    const all = entered.merge(groups);
    all.select("dt").text(([term]) => term);
    all.select("dd").text(([, value]) => value);
  }

  const near = (run) => (run.correlation.at(-1) === null ? "none" : d3.format(".6f")(run.correlation.at(-1)));

  function drawTable() {
    cells.replaceChildren();
    const grid = element(cells, "table");
    const head = element(element(grid, "thead"), "tr");
    for (const title of ["sequence", "token", "x", "y", "score", "margin", "attention", "role"]) element(head, "th", { scope: "col" }, title);
    const body = element(grid, "tbody");
    const run = picture.runs.W;
    state.tokens.forEach((sequence, i) => sequence.forEach((at, t) => {
      const row = element(body, "tr");
      const mark = [run.selected[i][t] ? "kept" : "", run.support[i][t] ? "support" : ""].filter(Boolean).join(", ");
      const values = [i + 1, t + 1, ...at.map(d3.format(".4~g")), said(picture.scores[i][t]), said(run.margins[i][t]), percent(run.attention[i][t]), mark];
      for (const value of values) element(row, "td", {}, String(value));
    }));
  }

  // ---- the rest

  function copy(target, text, fallback) {
    const done = (said) => {
      target.dataset.name ??= target.textContent; // a second click finds the first one's answer there
      target.textContent = said;
      setTimeout(() => { target.textContent = target.dataset.name; }, 1500);
    };
    const show = () => { if (fallback) fallback.open = true; done("Not allowed here"); };
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(() => done("Copied"), show);
    else show();
  }

  function tell(amiss) {
    misread = amiss;
    const text = model.get("notice") || (misread ? MISREAD : "");
    if (notice.textContent !== text) notice.textContent = text; // an alert that is written again is read out again
    notice.hidden = !text;
  }

  function noticed() {
    tell(misread);
    asked = null; // nothing that was asked before, or while nobody listened, is answered any more
    if (!model.get("notice") && seq) want(false);
  }

  model.on("change:answer", answered);
  model.on("change:notice", noticed);
  noticed();
  const followAddress = () => {
    const next = decodeState(location.hash);
    tell(!next && location.hash.length > 1);
    if (next) {
      name = next.name;
      load(next.state);
    }
  };
  if (addressed) addEventListener("hashchange", followAddress);
  let width = 0;
  const watcher = new ResizeObserver(() => {
    if (root.clientWidth === width) return;
    width = root.clientWidth;
    widths = new WeakMap();
    scene?.draw(state, matches(picture) ? picture : null);
    if (picture && matches(picture)) draw();
  });
  load(state);
  watcher.observe(root);
  return () => {
    watcher.disconnect();
    clearTimeout(resting);
    removeEventListener("hashchange", followAddress);
    model.off("change:answer", answered);
    model.off("change:notice", noticed);
  };
}

export default { render };
