// The page: every change of the state is computed and drawn as a whole within one frame, the verdict with the picture.

const REST = 160; // milliseconds of stillness after which the address and the notebook learn of a change
const PACE = 1.02; // growth of the step number per frame while playing
const FINE = 49; // starts per side of the painted square, and while something moves
const COARSE = 7;
const SLICE = 8; // milliseconds of painting per frame
const SLIDER = 400;
const MISREAD = "The address names no picture of this page; perhaps it was cut. The picture shown is another.";
const HINTS = {
  status: "Whether some W selects the chosen tokens. Optimal: one was found, and no shorter one exists. Infeasible: multipliers prove that there is none.",
  norm: "Length of the shortest W whose margin is one for every other token.",
  gap: "How far the norm can at most be above the smallest one, relative to it. Multipliers give the bound, computed in this page.",
  correlation: "Cosine of the angle between the trained matrix and the max-margin matrix: one if they have the same direction.",
};

function render({ model, el }) {
  const own = model?.get("start");
  const hash = !model && location.hash.length > 1 ? location.hash : "";
  const there = hash ? decodeState(hash) : null;
  let misread = Boolean(hash) && !there;
  let { name, state } = there ?? (model ? { name: own.name, state: model.get("state") } : { name: Object.keys(PRESETS)[0] });
  state = structuredClone(state ?? PRESETS[name].state);
  let origin = structuredClone(state);
  let picture = null;
  let scene = null;
  let shown = null; // the kind of scene on the page
  let playing = false;
  let basins = null;
  let painted = "";
  const remember = trainings();

  const root = element(el, "div", { class: "attsvm-play" });
  const header = element(root, "div");
  element(header, model ? "h2" : "h1", {}, "Attention as a support vector machine");
  const about = element(header, "p", { class: "about" });
  const bar = element(header, "div", { class: "bar" });
  const notice = element(root, "p", { class: "notice", role: "alert" });
  const transport = element(root, "div", { class: "transport", role: "group", "aria-label": "Steps of training" });
  const play = element(transport, "button", { type: "button", class: "play" }, "Play");
  const single = element(transport, "button", { type: "button" }, "One step");
  const slider = element(transport, "input", { type: "range", min: 0, max: SLIDER, "aria-label": "Step of training" });
  const count = element(transport, "output", { class: "step" });
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
  if (own?.title) titles.unshift(["", own.title]);
  const preset = chooser(bar, "preset", "Start from", titles, name ?? "", (key) => {
    name = key || null;
    tell(false);
    if (!model) history.pushState(null, "", location.href); // the way back to the picture before
    load(structuredClone(key ? PRESETS[key].state : own.state));
  });
  const button = (text, act) => element(bar, "button", { type: "button" }, text).addEventListener("click", act);
  button("Start again", () => load(structuredClone(origin)));
  button("Copy as Python", (event) => copy(event.target, scriptOf(state), script));
  if (!model) button("Copy link", (event) => { settle(); copy(event.target, location.href, null); });

  // ---- one frame

  let frame = null;
  let resting = null;
  const drawn = []; // times of the frames drawn within a second

  function want() {
    frame ??= requestAnimationFrame(update);
  }

  function update() {
    frame = null;
    if (playing) advance(Math.max(stepOf(state) + 1, Math.ceil(stepOf(state) * PACE)));
    const start = performance.now();
    picture = pictureOf(state, remember, Boolean(resting));
    paint();
    draw();
    const now = performance.now();
    drawn.push(now);
    while (drawn[0] < now - 1000) drawn.shift();
    root.dataset.drawn = Number(root.dataset.drawn ?? 0) + 1;
    root.dataset.latency = (now - start).toFixed(1);
    if (playing || (basins && !basins.finished)) want();
  }

  // Colours of other tokens are never shown: the square is painted coarsely at once, and finely while nothing moves.
  function paint() {
    const { tokens, queries, labels, v, head, optimizer } = state;
    const key = state.basins ? JSON.stringify([tokens, queries, labels, v, head, optimizer]) : "";
    if (key !== painted) {
      painted = key;
      basins = key ? basinsOf(state, COARSE, true) : null;
      while (basins && !basins.finished) basins.advance();
    } else if (basins?.side === COARSE && !resting) {
      basins = Object.assign(basinsOf(state, FINE), { coarse: basins });
    }
    const until = performance.now() + SLICE;
    while (basins && !basins.finished && performance.now() < until) basins.advance();
  }

  function advance(step) {
    if (step >= state.steps) pause();
    state = { ...state, step: step >= state.steps ? null : step };
  }

  function goTo(step) {
    state = { ...state, step: step >= state.steps ? null : Math.max(0, step) };
    rest();
    want();
  }

  function pause() {
    playing = false;
    play.textContent = "Play";
    rest();
  }

  play.addEventListener("click", () => {
    if (playing) {
      pause();
    } else {
      if (stepOf(state) >= state.steps) state = { ...state, step: 0 };
      playing = true;
      play.textContent = "Pause";
    }
    want();
  });
  single.addEventListener("click", () => {
    if (playing) pause();
    goTo(stepOf(state) >= state.steps ? 1 : stepOf(state) + 1);
  });
  // The slider is logarithmic, as most turns come early; a key or a pull always moves by one step at least.
  slider.addEventListener("input", () => {
    if (playing) pause();
    const value = Number(slider.value);
    const before = stepOf(state);
    let step = value ? Math.round(state.steps ** ((value - 1) / (SLIDER - 1))) : 0;
    if (step === before) step += Math.sign(value - sliderOf(before));
    goTo(step);
  });
  const sliderOf = (step) => (step ? Math.round(1 + ((SLIDER - 1) * Math.log(step)) / Math.log(Math.max(2, state.steps))) : 0);

  // What was moved or chosen is told to the address and the notebook once it rests.
  function rest() {
    clearTimeout(resting);
    resting = setTimeout(settle, REST);
  }

  function settle() {
    clearTimeout(resting);
    resting = null;
    if (!model) history.replaceState(null, "", `#${encodeState(name, state)}`);
    code.textContent = scriptOf(state);
    picture = pictureOf(state, remember);
    model?.set("state", state);
    model?.set("picture", { state, ...numbersOf(picture) });
    model?.save_changes();
    want();
    root.dataset.settled = Number(root.dataset.settled ?? 0) + 1;
  }

  function moved(part, live, key, spoken) {
    tell(false);
    state = { ...state, ...part };
    if (live) rest();
    else settle();
    want();
    if (key && spoken) pace.textContent = spoken;
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
    settle();
  }

  function keep(i, t) {
    const kept = Array.isArray(state.keep) ? [...state.keep] : [...picture.runs.W.kept];
    kept[i] = t;
    change((now) => ({ ...now, keep: kept }));
  }

  // ---- drawing

  function load(next) {
    if (playing) pause();
    state = next;
    origin = structuredClone(next);
    if (shown !== state.scene) {
      drawing.replaceChildren();
      scene = state.scene === "classes" ? makeClasses(drawing, moved) : makePlane(drawing, moved, keep);
      shown = state.scene;
    }
    scene.fit(state);
    root.dataset.scene = state.scene;
    preset.value = name ?? "";
    about.textContent = name ? PRESETS[name].about : own?.about ?? "";
    drawControls();
    settle();
  }

  function drawControls() {
    controls.replaceChildren();
    (state.scene === "classes" ? classesControls : planeControls)(controls, state, change);
  }

  function say({ tone, word, sentence }) {
    // A screen reader hears the verdict when the hand rests, not sixty times a second.
    d3.select(verdict).attr("class", `verdict ${tone}`).attr("aria-live", playing || resting ? "off" : "polite");
    if (verdict.dataset.said === word + sentence) return;
    verdict.dataset.said = word + sentence;
    verdict.replaceChildren();
    element(verdict, "strong", {}, `${word}.`);
    verdict.append(` ${sentence}`);
  }

  function draw() {
    const step = stepOf(state);
    slider.value = sliderOf(step);
    const counted = `step ${step.toLocaleString("en")} of ${state.steps.toLocaleString("en")}`;
    d3.select(count).text(counted);
    d3.select(slider).attr("aria-valuetext", counted);
    scene.draw(state, picture, basins);
    say(picture.verdict);
    if (picture.scene === "plane") {
      planeLegend(legend, state, picture, basins);
      drawFacts();
      drawBars(bars, state, picture);
      drawCurves(loss, correlations, picture);
      if (!resting && !playing) drawTable();
    } else {
      classesLegend(legend);
    }
    if (playing || resting) pace.textContent = `${drawn.length} updates in the last second, ${Number(root.dataset.latency ?? 0).toFixed(0)} ms each`;
  }

  function drawFacts() {
    const { W, KQ, exact } = picture.runs;
    const near = (run) => (run.correlation === null ? "none" : d3.format(".6f")(run.correlation));
    const rows = [
      ["Status", W.status.toLowerCase(), HINTS.status],
      [`SVM, ${NORM_TITLES[W.norm]} norm`, W.objective === null ? "none" : d3.format(".6~f")(W.objective), HINTS.norm],
      ["Gap", gapText(W.gap), HINTS.gap],
      ["Correlation of W", near(W), HINTS.correlation],
    ];
    if (KQ) rows.push(["Correlation of K Qᵀ", near(KQ), HINTS.correlation]);
    if (exact) rows.push(["In exact arithmetic", near(exact), HINTS.correlation]);
    const certified = model?.get("certified");
    if (certified && JSON.stringify(certified.state) === JSON.stringify(state)) rows.push(["Certified by solve", `gap ${gapText(certified.gap)}`, certified.sentence]);
    const groups = d3.select(facts).selectAll("div").data(rows, ([term]) => term);
    const entered = groups.enter().append("div");
    const terms = entered.append("dt");
    terms.append("span").text(([term]) => `${term} `);
    const hints = terms.append("button").attr("type", "button").attr("class", "hint").text("?")
      .attr("aria-label", ([term]) => `What is this: ${term}`).attr("aria-describedby", ([term]) => `attsvm-hint-${term.replaceAll(/\W/g, "")}`);
    hints.on("keydown", (event) => { if (event.key === "Escape") event.target.blur(); });
    terms.append("span").attr("role", "tooltip").attr("class", "tip").attr("id", ([term]) => `attsvm-hint-${term.replaceAll(/\W/g, "")}`);
    entered.append("dd");
    groups.exit().remove();
    const all = entered.merge(groups).order();
    all.select(".tip").text(([, , hint]) => hint);
    all.select("dd").text(([, value]) => value);
  }

  function drawTable() {
    const run = picture.runs.W;
    const rows = state.tokens.flatMap((sequence, i) => sequence.map((at, t) => {
      const mark = [run.selected[i][t] ? "selected" : "", run.support[i][t] ? "support" : ""].filter(Boolean).join(", ");
      return [i + 1, t + 1, ...at.map(d3.format(".4~g")), said(picture.scores[i][t]), said(run.margins[i][t]), percent(run.attention[i][t]), mark];
    }));
    const written = JSON.stringify(rows);
    if (cells.dataset.written === written) return;
    cells.dataset.written = written;
    cells.replaceChildren();
    const grid = element(cells, "table");
    const head = element(element(grid, "thead"), "tr");
    for (const title of ["sequence", "token", "x", "y", "score", "margin", "attention", "role"]) element(head, "th", { scope: "col" }, title);
    const body = element(grid, "tbody");
    for (const values of rows) {
      const row = element(body, "tr");
      for (const value of values) element(row, "td", {}, String(value));
    }
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
    const text = misread ? MISREAD : "";
    if (notice.textContent === text && notice.hidden === !text) return; // an alert written again is read out again
    notice.textContent = text;
    notice.hidden = !text;
  }

  tell(misread);
  const followAddress = () => {
    const next = decodeState(location.hash);
    tell(!next && location.hash.length > 1);
    if (next) {
      name = next.name;
      load(next.state);
    }
  };
  if (!model) addEventListener("hashchange", followAddress);
  const followNotebook = () => {
    const next = model.get("state");
    if (JSON.stringify(next) !== JSON.stringify(state)) load(structuredClone(next));
  };
  model?.on("change:state", followNotebook);
  model?.on("change:certified", want);
  let width = 0;
  const watcher = new ResizeObserver(() => {
    if (root.clientWidth === width) return;
    width = root.clientWidth;
    widths = new WeakMap();
    want();
  });
  load(state);
  watcher.observe(root);
  return () => {
    watcher.disconnect();
    clearTimeout(resting);
    cancelAnimationFrame(frame);
    playing = false;
    removeEventListener("hashchange", followAddress);
    model?.off("change:state", followNotebook);
    model?.off("change:certified", want);
  };
}

// What a notebook learns of a picture: numbers, without paths.
function numbersOf(picture) {
  if (picture.scene === "classes") return picture;
  const runs = Object.entries(picture.runs).map(([name, run]) => {
    const { status, norm, objective, gap, kept, selected, support, margins, attention, loss, correlation } = run;
    const matrix = (W) => W && nested(W, picture.data.m);
    return [name, { status, norm, objective, gap, kept, selected, support, margins, attention, loss, correlation, W: matrix(run.W), trained: matrix(run.trained) }];
  });
  return { scene: "plane", step: picture.step, scores: picture.scores, best: picture.best, verdict: picture.verdict, runs: Object.fromEntries(runs) };
}
