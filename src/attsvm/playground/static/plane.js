// The plane: tokens to drag, the rays of the SVM, and the paths of training that turn into them.

const SHAPES = [d3.symbolCircle, d3.symbolSquare, d3.symbolTriangle];
const MARGIN = 14;
const STEP = 0.05; // of an arrow key; with Shift five times that
// Steps at which paths and curves are drawn: denser at the start, and the present one.
function recordsOf(steps, step) {
  if (records.steps !== steps || records.step !== step) {
    const marks = Array.from({ length: 80 }, (_, k) => Math.round(steps ** (k / 79)));
    records = { steps, step, all: [...new Set([0, step, ...marks])].filter((one) => one <= steps).sort((a, b) => a - b) };
  }
  return records.all;
}
let records = {};
// Paths grow without end: their distance from the origin is drawn on a logarithmic scale from here on.
const LOG_FROM = 0.3;
const pathLine = d3.line().digits(2); // of a pixel: longer numbers are only longer to read
const subscript = (i) => "₁₂₃"[i];
const place = (point) => point.map((value) => Math.round(value * 1000) / 1000);
const gapText = (value) => (value === null ? "none" : value === 0 ? "0" : d3.format(".1e")(value).replace("−", "-"));
const said = (value) => (value === null || value === undefined ? "none" : d3.format(".3~g")(value));

// Whether an earlier sequence has the same query, and so the same path and ray.
const repeats = (state, i) => state.queries.slice(0, i).some((z) => z.every((entry, k) => entry === state.queries[i][k]));

// The different queries, if they lie in the plane.
const drawableQueries = (state) => state.queries.flatMap((z, i) => (z.length === 2 && !repeats(state, i) ? [{ z, i }] : []));

// How far the plane must reach to show the state with some room.
function reachOf(state) {
  const points = [...state.tokens.flat(), state.v, ...drawableQueries(state).map(({ z }) => z), ...(state.start ? [state.start] : [])];
  return Math.max(1.2, 1.25 * Math.max(...points.map(([x, y]) => Math.max(Math.abs(x), Math.abs(y)))));
}

function makePlane(parent, moved, kept) {
  const svg = d3.select(parent).append("svg").attr("class", "plane").attr("role", "group")
    .attr("aria-label", "Tokens in the plane; Tab goes from one to the next, arrow keys move it, Enter selects it");
  svg.append("rect").attr("class", "sheet").attr("width", "100%").attr("height", "100%").attr("rx", 9);
  const layers = {};
  for (const name of ["basins", "grid", "hulls", "margins", "rays", "paths", "handles", "tokens"]) {
    layers[name] = svg.append("g").attr("class", name);
  }
  for (const name of ["basins", "grid", "hulls", "margins", "rays", "paths"]) layers[name].attr("aria-hidden", "true");
  let size = 0;
  let reach = 1;
  let current = null;
  let painted = null;
  const scale = d3.scaleLinear();
  const x = (value) => size / 2 + scale(value);
  const y = (value) => size / 2 - scale(value);

  function fit(state) {
    reach = state.basins ? BASIN_REACH : reachOf(state);
  }

  function resize() {
    const next = Math.max(280, Math.min(620, widthOf(parent)));
    size = next;
    svg.attr("width", size).attr("height", size).attr("viewBox", `0 0 ${size} ${size}`);
    scale.domain([0, reach]).range([0, size / 2 - MARGIN]);
  }

  // Dragging and arrow keys are the same for tokens, v and the start.
  function movable(selection, position, move) {
    let last = null; // the datum of a drag is that of its start
    selection.call(d3.drag().container(() => svg.node())
      .subject((event, datum) => ({ x: x(position(datum)[0]), y: y(position(datum)[1]) }))
      .on("start", () => { last = null; })
      .on("drag", (event, datum) => {
        last = place([scale.invert(event.x - size / 2), scale.invert(size / 2 - event.y)].map(within));
        move(datum, last, true);
      })
      .on("end", (event, datum) => { if (last) move(datum, last, false); }));
    selection.on("keydown", (event, datum) => {
      const by = STEP * (event.shiftKey ? 5 : 1);
      const along = { ArrowLeft: [-by, 0], ArrowRight: [by, 0], ArrowUp: [0, by], ArrowDown: [0, -by] }[event.key];
      if (!along) return;
      event.preventDefault();
      const [a, b] = position(datum);
      move(datum, place([a + along[0], b + along[1]].map(within)), true, true);
    });
  }

  const within = (value) => Math.max(-reach, Math.min(reach, value));

  function handle(name, title, points, position, move) {
    const groups = layers.handles.selectAll(`g.${name}`).data(points, (d) => d.i ?? 0);
    const entered = groups.enter().append("g").attr("class", `handle ${name}`).attr("tabindex", 0).attr("role", "button");
    entered.append("line");
    entered.append("path").attr("class", "shape");
    entered.append("circle").attr("class", "touch").attr("r", 17);
    entered.append("text").attr("class", "name");
    movable(entered, position, move);
    groups.exit().remove();
    return entered.merge(groups)
      .attr("aria-label", (d) => `${title(d)} at ${position(d).join(", ")}; arrow keys move it`)
      .attr("transform", (d) => `translate(${x(position(d)[0])},${y(position(d)[1])})`);
  }

  function drawArrow(group, [a, b], name) {
    const [dx, dy] = [x(0) - x(a), y(0) - y(b)];
    group.select("line").attr("x1", dx).attr("y1", dy).attr("x2", 0).attr("y2", 0);
    group.select(".shape").attr("d", "M5,0L-7,-5.5L-4,0L-7,5.5Z").attr("transform", `rotate(${(Math.atan2(-dy, -dx) * 180) / Math.PI})`);
    group.select("text").attr("x", a < 0 ? -20 : 10).attr("y", b > 0 ? -6 : 18).text(name);
  }

  function drawHandles(state) {
    const arrow = handle("direction", () => (state.head === "relu" ? "Output weights v" : "Score direction v"), [state], (s) => s.v,
      (s, v, live, key) => moved({ v }, live, key));
    drawArrow(arrow, state.v, "v");
    const queries = drawableQueries(state);
    const named = ({ i }) => (queries.length > 1 ? `z${subscript(i)}` : "z");
    const arrows = handle("query", (d) => `Query ${named(d)}`, queries, (d) => d.z, (d, z, live, key) => {
      const old = current.queries[d.i];
      if (z.some((entry) => entry !== 0)) moved({ queries: current.queries.map((one) => (one.every((entry, k) => entry === old[k]) ? z : one)) }, live, key);
    });
    arrows.attr("class", (d) => `handle query sequence-${d.i}`).each(function (d) {
      drawArrow(d3.select(this), d.z, named(d));
    });
    const start = handle("start", () => "Start of training, W(0) z", state.start ? [state] : [], (s) => s.start,
      (s, place, live, key) => moved({ start: place }, live, key));
    start.select(".shape").attr("d", "M0,-8L8,0L0,8L-8,0Z");
    start.select("text").attr("x", 12).attr("y", -9).text("start");
  }

  function drawTokens(state, picture) {
    const run = picture.runs.W;
    const tokens = state.tokens.flatMap((sequence, i) => sequence.map((at, t) => ({ i, t, at })));
    const shares = picture.scores.map((row) => {
      const [low, high] = [Math.min(...row), Math.max(...row)];
      return row.map((score) => (high > low ? (score - low) / (high - low) : 1));
    });
    const groups = layers.tokens.selectAll("g.token").data(tokens, (d) => `${d.i}.${d.t}`);
    const entered = groups.enter().append("g").attr("tabindex", 0).attr("role", "button");
    entered.append("circle").attr("class", "ring").attr("r", 13);
    entered.append("path").attr("class", "ground");
    entered.append("path").attr("class", "shape");
    entered.append("text").attr("class", "name");
    entered.append("circle").attr("class", "touch").attr("r", 17);
    movable(entered, (d) => d.at, (d, at, live, key) => {
      const next = structuredClone(current.tokens);
      next[d.i][d.t] = at;
      moved({ tokens: next }, live, key, `Sequence ${d.i + 1}, token ${d.t + 1} at ${at.join(", ")}`);
    });
    entered.on("dblclick", (event, d) => kept(d.i, d.t));
    entered.on("keydown.keep", (event, d) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      kept(d.i, d.t);
    });
    groups.exit().remove();
    // A linear head has a best token; where another one is selected, the optimum is local.
    const marks = ({ i, t }) => [
      run.selected[i][t] ? "kept" : "",
      run.selected[i][t] && state.head === "linear" && picture.scores[i][t] < picture.scores[i][picture.best[i]] ? "lower" : "",
      run.support[i][t] ? "support" : "",
    ].filter(Boolean);
    const spoken = { kept: "selected", lower: "not the best score", support: "support token" };
    const merged = entered.merge(groups)
      .attr("class", (d) => ["token", `sequence-${d.i}`, ...marks(d)].join(" "))
      .attr("transform", (d) => `translate(${x(d.at[0])},${y(d.at[1])})`)
      .attr("aria-label", (d) => [`Sequence ${d.i + 1}, token ${d.t + 1}`, ...marks(d).map((mark) => spoken[mark]), `score ${said(picture.scores[d.i][d.t])}`, `at ${d.at.join(", ")}`].join(", "));
    // Tokens that nearly coincide are drawn small enough to stand apart, and the lower one has its number below.
    const nearest = new Map(tokens.map((d) => [d, tokens.filter((other) => other !== d)
      .map((other) => [x(other.at[0]) - x(d.at[0]), y(other.at[1]) - y(d.at[1])])
      .reduce((a, b) => (Math.hypot(...b) < Math.hypot(...a) ? b : a), [Infinity, Infinity])]));
    const shape = (d) => d3.symbol(SHAPES[d.i], Math.min(150, Math.max(20, 0.6 * Math.hypot(...nearest.get(d)) ** 2)))();
    const below = (d) => Math.hypot(...nearest.get(d)) < 15 && nearest.get(d)[1] < 0;
    merged.select(".ground").attr("d", shape);
    merged.select(".shape").attr("d", shape).attr("fill-opacity", (d) => 0.06 + 0.94 * shares[d.i][d.t]);
    merged.select(".name").text((d) => d.t + 1).attr("x", 11).attr("y", (d) => (below(d) ? 19 : -9));
  }

  function drawGrid() {
    const ticks = scale.copy().domain([-reach, reach]).ticks(7);
    const lines = layers.grid.selectAll("g.tick").data(ticks);
    const entered = lines.enter().append("g").attr("class", "tick");
    entered.append("line").attr("class", "across");
    entered.append("line").attr("class", "down");
    entered.append("text").attr("class", "along-x");
    entered.append("text").attr("class", "along-y");
    const merged = entered.merge(lines).attr("class", (d) => (d === 0 ? "tick zero" : "tick"));
    merged.select(".across").attr("x1", 0).attr("x2", size).attr("y1", (d) => y(d)).attr("y2", (d) => y(d));
    merged.select(".down").attr("y1", 0).attr("y2", size).attr("x1", (d) => x(d)).attr("x2", (d) => x(d));
    const label = (d) => (Math.abs(d) < reach * 0.93 ? d3.format("~g")(d) : "");
    merged.select(".along-x").attr("x", (d) => x(d) + 3).attr("y", size - 4).text(label);
    merged.select(".along-y").attr("x", 4).attr("y", (d) => y(d) - 3).text(label);
    lines.exit().remove();
  }

  // From the coordinates of W z to the screen, every run filling the plane; directions stay what they are.
  function pathScale(state, points) {
    if (state.start) return ([a, b]) => [x(a), y(b)];
    const longest = Math.max(1e-9, ...points.flat().map(([a, b]) => Math.hypot(a, b)));
    const most = Math.log1p(longest / LOG_FROM);
    return ([a, b]) => {
      const r = Math.hypot(a, b);
      const to = r === 0 ? 0 : (0.9 * reach * Math.log1p(r / LOG_FROM)) / most / r;
      return [x(a * to), y(b * to)];
    };
  }

  function drawRays(state, { data, step, runs }) {
    const rays = Object.entries(runs).filter(([name]) => name !== "exact").flatMap(([name, run]) =>
      (run.ray ?? []).map((end, i) => ({ name, i, end })).filter(({ i, end }) => Math.hypot(...end) > 0 && !repeats(state, i)));
    layers.rays.selectAll("line").data(rays).join("line")
      .attr("class", (d) => `ray ${d.name} sequence-${d.i}`)
      .attr("x1", x(0)).attr("y1", y(0))
      .attr("x2", (d) => x((1.5 * reach * d.end[0]) / Math.hypot(...d.end)))
      .attr("y2", (d) => y((1.5 * reach * d.end[1]) / Math.hypot(...d.end)));
    const order = ["exact", "KQ", "W"];
    const paths = order.filter((name) => runs[name]).flatMap((name) => {
      const { trace } = runs[name];
      const records = recordsOf(trace.steps, step);
      const points = records.map((one) => raysOf(data, matrixAt(trace, one))); // (records, n, 2)
      const to = pathScale(state, points);
      const here = records.indexOf(step);
      return state.queries.map((_, i) => ({ name, i, here, points: points.map((all) => to(all[i])) })).filter(({ i }) => !repeats(state, i));
    });
    // What is still to come is fainter.
    const parts = paths.flatMap((path) => [{ ...path, ahead: true }, path]);
    layers.paths.selectAll("path").data(parts).join("path")
      .attr("class", (d) => `path ${d.name} sequence-${d.i} ${d.ahead ? "ahead" : "gone"}`)
      .attr("d", (d) => pathLine(d.ahead ? d.points.slice(d.here) : d.points.slice(0, d.here + 1)));
    const inside = ([a, b]) => a >= 0 && a <= size && b >= 0 && b <= size;
    const ends = paths.filter((d) => d.name === "W").map((d) => ({ i: d.i, at: d.points.slice(0, d.here + 1).findLast(inside) ?? d.points[0], out: !inside(d.points[d.here]) }));
    layers.paths.selectAll("circle").data(ends.filter((d) => !d.out)).join("circle").attr("class", (d) => `end sequence-${d.i}`).attr("r", 4)
      .attr("cx", (d) => d.at[0]).attr("cy", (d) => d.at[1]);
    layers.paths.selectAll("text").data(ends).join("text").attr("class", (d) => `name sequence-${d.i}`)
      .attr("x", (d) => Math.max(6, Math.min(size - 36, d.at[0] + 7)))
      .attr("y", (d) => Math.max(14, Math.min(size - 16, d.at[1] + (d.i === 1 ? -9 : 15))))
      .text((d) => (ends.length > 1 ? `W z${subscript(d.i)}` : "W z"));
  }

  // For each sequence the line of its kept token, and the line one margin behind.
  function drawMargins(state, run) {
    const lines = (run.ray ?? []).flatMap(([a, b], i) => {
      if (a * a + b * b === 0) return [];
      const [px, py] = state.tokens[i][run.kept[i]];
      const level = a * px + b * py;
      const length = Math.hypot(a, b);
      return [0, 1].map((behind) => {
        const foot = (level - behind) / (length * length);
        return { i, behind, x: foot * a, y: foot * b, dx: (-b / length) * 3 * reach, dy: (a / length) * 3 * reach };
      });
    });
    layers.margins.selectAll("line").data(lines).join("line")
      .attr("class", (d) => `margin sequence-${d.i} ${d.behind ? "behind" : "front"}`)
      .attr("x1", (d) => x(d.x - d.dx)).attr("y1", (d) => y(d.y - d.dy))
      .attr("x2", (d) => x(d.x + d.dx)).attr("y2", (d) => y(d.y + d.dy));
    const hulls = run.status !== "INFEASIBLE" ? [] : state.tokens.flatMap((sequence, i) => {
      const others = sequence.filter((_, t) => t !== run.kept[i]);
      const hull = d3.polygonHull(others);
      return hull && d3.polygonContains(hull, sequence[run.kept[i]]) ? [{ i, hull }] : [];
    });
    layers.hulls.selectAll("polygon").data(hulls).join("polygon").attr("class", (d) => `hull sequence-${d.i}`)
      .attr("points", (d) => d.hull.map(([a, b]) => `${x(a)},${y(b)}`).join(" "));
  }

  // Runs of one destination in a row are one rectangle. What is not finely painted yet is painted coarsely.
  function drawBasins(all) {
    const basins = all && !all.finished ? all.coarse : all;
    if (basins && basins === painted?.basins && painted.size === size) return;
    const cells = [];
    if (basins) {
      const width = (2 * basins.reach) / (basins.side - 1);
      for (let row = 0; row < basins.side; row++) {
        for (let from = 0; from < basins.side;) {
          const kind = basins.cells[row * basins.side + from];
          let to = from;
          while (to < basins.side && basins.cells[row * basins.side + to] === kind) to++;
          cells.push({ kind, x: -basins.reach + (from - 0.5) * width, y: -basins.reach + (row + 0.5) * width, w: (to - from) * width, h: width });
          from = to;
        }
      }
    }
    painted = { basins, size };
    layers.basins.selectAll("rect").data(cells).join("rect").attr("class", (d) => basinClass(basins, d.kind))
      .attr("x", (d) => x(d.x)).attr("y", (d) => y(d.y))
      .attr("width", (d) => scale(d.w) + 0.6).attr("height", (d) => scale(d.h) + 0.6);
  }

  return {
    node: svg.node(),
    fit,
    draw(state, picture, basins) {
      current = state;
      resize();
      drawGrid();
      drawBasins(basins);
      drawMargins(state, picture.runs.W);
      drawRays(state, picture);
      drawHandles(state);
      drawTokens(state, picture);
    },
  };
}

// The class of a painted start, by where training ends.
function basinClass(basins, kind) {
  if (kind < 0) return "basin none";
  const locals = basins.directions.filter((direction) => !direction.global);
  return basins.directions[kind].global ? "basin global" : `basin local-${Math.min(2, locals.indexOf(basins.directions[kind]))}`;
}

function planeLegend(parent, state, picture, all) {
  const { W, KQ, exact } = picture.runs;
  const feasible = W.status !== "INFEASIBLE";
  const basins = all && !all.finished ? all.coarse : all;
  const painted = basins?.directions.map(({ selected, global, count }, kind) => {
    const share = percent(count / basins.side ** 2);
    return [basinClass(basins, kind), `starts that end on tokens ${selected.map((token) => token + 1).join(" and ")}, ${global ? "the global" : "a local"} optimum: ${share}`];
  });
  const lower = state.head === "linear" && W.kept.some((t, i) => picture.scores[i][t] < picture.scores[i][picture.best[i]]);
  const entries = [
    ["path W", "path of W z"],
    exact && ["path exact", "path in exact arithmetic"],
    KQ && ["path KQ", "path of K Qᵀz"],
    feasible && ["ray W", "max-margin ray"],
    KQ && feasible && ["ray KQ", "ray of the nuclear norm"],
    ["ring kept", "selected token"],
    lower && ["ring kept lower", "selected token that does not score best"],
    state.queries[0].length === 2 && ["query", "query z"],
    feasible && ["ring support", "support token, at margin one"],
    feasible && ["margin behind", "line of margin one"],
    !feasible && ["hull", "hull of the other tokens"],
    ["fill", "fuller: higher score"],
    ...(painted ?? []),
  ].filter(Boolean);
  const written = entries.join();
  if (parent.dataset.entries === written) return;
  parent.dataset.entries = written;
  parent.replaceChildren();
  for (const [kind, text] of entries) {
    const item = element(parent, "li");
    const svg = d3.select(item).append("svg").attr("width", 26).attr("height", 14).attr("aria-hidden", "true").attr("class", `key sequence-0`);
    if (kind.startsWith("ring")) {
      svg.append("g").attr("class", `token sequence-0 ${kind.slice(5)}`).attr("transform", "translate(13,7)")
        .call((g) => { g.append("circle").attr("class", "ring").attr("r", 6); g.append("circle").attr("class", "dot").attr("r", 2.5); });
    } else if (kind === "query") {
      const arrow = svg.append("g").attr("class", "handle query sequence-0");
      arrow.append("line").attr("x1", 2).attr("x2", 16).attr("y1", 7).attr("y2", 7);
      arrow.append("path").attr("class", "shape").attr("d", "M24,7L12,1.5L15,7L12,12.5Z");
    } else if (kind === "fill") {
      [0.1, 0.5, 1].forEach((opacity, k) => svg.append("circle").attr("class", "score").attr("r", 3.6).attr("cx", 4.5 + 8.5 * k).attr("cy", 7).attr("fill-opacity", opacity));
    } else {
      const area = kind.startsWith("basin") || kind === "hull";
      if (area) svg.append("rect").attr("class", `${kind} sequence-0`).attr("x", 1).attr("y", 1).attr("width", 24).attr("height", 12);
      else svg.append("line").attr("class", `${kind} sequence-0`).attr("x1", 1).attr("x2", 25).attr("y1", 7).attr("y2", 7);
    }
    item.append(text);
  }
}
