// Three classes in the plane, once for each optimiser: regions of the trained classifier, borders of the SVM.

const RACE_TITLES = { normalized_gd: "Normalised gradient descent", sign: "Sign descent", spectral: "Spectral descent" };
const RACE_NORMS = { frobenius: "Frobenius", max: "largest entry", spectral: "spectral" };

// The part of the square where class c scores at least as high as the others, by cutting half-planes off.
function region(W, c, reach) {
  let polygon = [[-reach, -reach], [reach, -reach], [reach, reach], [-reach, reach]];
  W.forEach((other, k) => {
    if (k === c) return;
    const [a, b, level] = [0, 1, 2].map((at) => W[c][at] - other[at]);
    const value = ([x, y]) => a * x + b * y + level;
    polygon = polygon.flatMap((point, at) => {
      const next = polygon[(at + 1) % polygon.length];
      const [here, there] = [value(point), value(next)];
      const kept = here >= 0 ? [point] : [];
      if (here * there < 0) {
        const share = here / (here - there);
        kept.push([point[0] + share * (next[0] - point[0]), point[1] + share * (next[1] - point[1])]);
      }
      return kept;
    });
  });
  return polygon;
}

function makeClasses(parent, moved) {
  const grid = d3.select(parent).append("div").attr("class", "races");
  let reach = 3;
  let current = null;
  let last = null;
  const within = (value) => Math.max(-reach, Math.min(reach, value));
  return {
    fit(state) {
      reach = 1.15 * Math.max(1.5, ...state.points.flat().map(Math.abs));
    },
    draw(state, picture) {
      current = state;
      const panels = grid.selectAll("section").data(picture.races);
      const entered = panels.enter().append("section");
      entered.append("p").attr("class", "title");
      const drawing = entered.append("svg").attr("role", "group");
      for (const name of ["regions", "borders", "points"]) drawing.append("g").attr("class", name);
      entered.append("p").attr("class", "reached");
      entered.append("div").attr("class", "shares");
      entered.merge(panels).each(function (race, number) {
        const panel = d3.select(this);
        const size = Math.max(200, Math.min(320, widthOf(this)));
        const to = d3.scaleLinear([-reach, reach], [0, size]);
        const up = d3.scaleLinear([-reach, reach], [size, 0]);
        panel.select(".title").text(RACE_TITLES[race.optimizer]);
        const svg = panel.select("svg").attr("width", size).attr("height", size)
          .attr("aria-label", `Points under ${RACE_TITLES[race.optimizer]}; arrow keys move the one in focus`);
        const outline = (polygon) => (polygon.length ? `M${polygon.map(([a, b]) => `${to(a)},${up(b)}`).join("L")}Z` : "");
        const classes = [0, 1, 2];
        svg.select(".regions").attr("aria-hidden", "true").selectAll("path").data(classes).join("path")
          .attr("class", (c) => `region sequence-${c}`).attr("d", (c) => outline(region(race.trained, c, 1.1 * reach)));
        svg.select(".borders").attr("aria-hidden", "true").selectAll("path").data(race.W ? classes : []).join("path")
          .attr("class", "border").attr("d", (c) => outline(region(race.W, c, 1.1 * reach)));
        const points = svg.select(".points").selectAll("g").data(state.points.map((at, i) => ({ at, i })));
        const fresh = points.enter().append("g").attr("role", "button").attr("tabindex", number === 0 ? 0 : -1);
        fresh.append("circle").attr("class", "ring").attr("r", 9);
        fresh.append("path").attr("class", "ground");
        fresh.append("path").attr("class", "shape");
        fresh.append("circle").attr("class", "touch").attr("r", 14);
        const move = (i, at, live, key) => {
          const next = structuredClone(current.points);
          next[i] = at;
          moved({ points: next }, live, key, `Point ${i + 1} at ${at.join(", ")}`);
        };
        fresh.call(d3.drag().container(() => svg.node())
          .subject((event, d) => ({ x: to(d.at[0]), y: up(d.at[1]) }))
          .on("start", () => { last = null; })
          .on("drag", (event, d) => {
            last = place([to.invert(event.x), up.invert(event.y)].map(within));
            move(d.i, last, true);
          })
          .on("end", (event, d) => { if (last) move(d.i, last, false); }));
        fresh.on("keydown", (event, d) => {
          const by = 2 * STEP * (event.shiftKey ? 5 : 1);
          const along = { ArrowLeft: [-by, 0], ArrowRight: [by, 0], ArrowUp: [0, by], ArrowDown: [0, -by] }[event.key];
          if (!along) return;
          event.preventDefault();
          const [a, b] = current.points[d.i];
          move(d.i, place([a + along[0], b + along[1]].map(within)), true, true);
        });
        points.exit().remove();
        const shown = fresh.merge(points).attr("transform", (d) => `translate(${to(d.at[0])},${up(d.at[1])})`)
          .attr("class", (d) => `token sequence-${state.classes[d.i]} ${race.support[d.i] ? "support" : ""}`)
          .attr("aria-label", (d) => `Point ${d.i + 1} of class ${state.classes[d.i] + 1}${race.support[d.i] ? ", support" : ""}, at ${d.at.join(", ")}`);
        const shape = (d) => d3.symbol(SHAPES[state.classes[d.i]], 60)();
        shown.select(".ground").attr("d", shape);
        shown.select(".shape").attr("d", shape);
        // Only the Frobenius norm has a single max-margin W; shares of the margin need none.
        panel.select(".reached").text(race.objective === null ? "No SVM to compare with." : `The SVM of the ${RACE_NORMS[race.norm]} norm has norm ${d3.format(".4~f")(race.objective)}, gap ${gapText(race.gap)}.`);
        const shares = Object.entries(race.shares).map(([norm, share]) => ({ norm, share }));
        const rows = panel.select(".shares").selectAll("div").data(shares);
        const row = rows.enter().append("div");
        row.append("span").attr("class", "name");
        row.append("span").attr("class", "track").append("span").attr("class", "bar");
        row.append("span").attr("class", "share");
        const every = row.merge(rows).attr("class", (d) => (d.norm === race.norm ? "own" : ""));
        every.select(".name").text((d) => RACE_NORMS[d.norm]);
        every.select(".bar").style("width", (d) => `${100 * Math.max(0, d.share ?? 0)}%`);
        every.select(".share").text((d) => (d.share === null ? "none" : d3.format(".1%")(d.share)));
      });
    },
  };
}

const CLASSES_LEGEND = [
  ["regions", "colour: the class training chooses"],
  ["border", "borders of the SVM"],
  ["ring support", "support point"],
  ["shares", "bars: share of the largest margin in each norm"],
];

function classesLegend(parent) {
  if (parent.dataset.entries === "classes") return;
  parent.dataset.entries = "classes";
  parent.replaceChildren();
  for (const [kind, text] of CLASSES_LEGEND) {
    const item = element(parent, "li");
    const svg = d3.select(item).append("svg").attr("width", 26).attr("height", 14).attr("aria-hidden", "true").attr("class", "key");
    if (kind === "regions") [0, 1, 2].forEach((c) => svg.append("rect").attr("class", `region sequence-${c}`).attr("x", 1 + 8 * c).attr("y", 1).attr("width", 8).attr("height", 12));
    if (kind === "border") svg.append("line").attr("class", "border").attr("x1", 1).attr("x2", 25).attr("y1", 7).attr("y2", 7);
    if (kind === "ring support") svg.append("g").attr("class", "token support").attr("transform", "translate(13,7)").append("circle").attr("class", "ring").attr("r", 6);
    if (kind === "shares") svg.append("rect").attr("class", "mark").attr("x", 1).attr("y", 4).attr("width", 22).attr("height", 6);
    item.append(text);
  }
}
