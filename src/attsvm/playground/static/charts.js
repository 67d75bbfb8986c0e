// Attention as bars, and the curves of training.

const percent = d3.format(".0%");

function drawBars(parent, state, picture) {
  const runs = picture.runs;
  const rows = d3.select(parent).selectAll("div.bars").data(picture.scores.map((_, i) => i));
  const entered = rows.enter().append("div").attr("class", "bars");
  entered.append("p").attr("class", "title");
  entered.append("svg").attr("role", "img");
  rows.exit().remove();
  const width = Math.max(120, widthOf(parent) / Math.min(picture.scores.length, 3) - 14);
  entered.merge(rows).each(function (i) {
    const T = picture.scores[i].length;
    const box = d3.select(this).attr("class", `bars sequence-${i}`);
    box.select(".title").text(`Sequence ${i + 1}`);
    const svg = box.select("svg").attr("width", width).attr("height", 19 * T + 2);
    const shares = runs.W.attention[i];
    svg.attr("aria-label", `Attention of sequence ${i + 1}: ${shares.map((share, t) => `token ${t + 1} ${percent(share)}`).join(", ")}`);
    const length = d3.scaleLinear([0, 1], [0, width - 62]);
    const bars = svg.selectAll("g").data(shares.map((share, t) => ({ share, t, other: runs.KQ?.attention[i][t] })));
    const fresh = bars.enter().append("g");
    fresh.append("text").attr("class", "token-name").attr("x", 0).attr("y", 13);
    fresh.append("rect").attr("class", "track").attr("x", 14).attr("y", 4).attr("height", 11);
    fresh.append("rect").attr("class", "bar").attr("x", 14).attr("y", 4).attr("height", 11);
    fresh.append("line").attr("class", "other").attr("y1", 2.5).attr("y2", 16.5);
    fresh.append("text").attr("class", "share").attr("y", 13);
    bars.exit().remove();
    const all = fresh.merge(bars).attr("transform", (d) => `translate(0,${19 * d.t})`)
      .attr("class", (d) => (runs.W.selected[i][d.t] ? "kept" : ""));
    all.select(".token-name").text((d) => d.t + 1);
    all.select(".track").attr("width", length(1));
    all.select(".bar").attr("width", (d) => length(d.share));
    all.select(".other").attr("visibility", (d) => (d.other === undefined ? "hidden" : null))
      .attr("x1", (d) => 14 + length(d.other ?? 0)).attr("x2", (d) => 14 + length(d.other ?? 0));
    all.select(".share").attr("x", width - 44).text((d) => percent(d.share));
  });
}

// Lines over training steps; `curves` is a list of { name, steps, values }, with null where a value is not defined.
function drawCurve(parent, title, curves, domain, step) {
  const width = Math.max(160, widthOf(parent));
  const height = 116;
  const [left, right, top, bottom] = [40, 20, 8, 22];
  let svg = d3.select(parent).select("svg");
  if (svg.empty()) {
    d3.select(parent).append("p").attr("class", "title").text(`${title} over steps`);
    svg = d3.select(parent).append("svg").attr("role", "img");
    for (const name of ["x axis", "y axis", "lines"]) svg.append("g").attr("class", name);
    svg.append("line").attr("class", "now");
  }
  const last = Math.max(2, ...curves.map((curve) => curve.steps.at(-1)));
  const here = Math.max(1, step);
  const x = d3.scaleLog([1, last], [left, width - right]);
  const y = d3.scaleLinear(domain, [height - bottom, top]).nice(4);
  svg.attr("width", width).attr("height", height);
  const frame = [width, last, ...y.domain()].join();
  if (svg.attr("data-frame") !== frame) drawAxes(svg.attr("data-frame", frame), x, y, last, left, height - bottom);
  const path = d3.line().digits(2).defined(([step, value]) => step >= 1 && value !== null).x(([step]) => x(step)).y(([, value]) => y(value));
  svg.select(".lines").selectAll("path").data(curves, (d) => d.name).join("path")
    .attr("class", (d) => `curve ${d.name}`)
    .attr("d", (d) => path(d.steps.map((step, k) => [step, d.values[k]])));
  svg.select(".now").attr("x1", x(here)).attr("x2", x(here)).attr("y1", top).attr("y2", height - bottom);
  const end = curves.map((curve) => `${curve.label} ${said(curve.values[curve.steps.indexOf(step)])} after ${step} steps`);
  svg.attr("aria-label", `${title} over training steps: ${end.join("; ")}`);
}

function drawAxes(svg, x, y, last, left, foot) {
  const powers = [1, 10, 100, 1000].filter((power) => power < last / 2.5);
  svg.select(".x").attr("transform", `translate(0,${foot})`)
    .call(d3.axisBottom(x).tickValues([...powers, last]).tickFormat(d3.format(",")).tickSize(4));
  svg.select(".y").attr("transform", `translate(${left},0)`).call(d3.axisLeft(y).ticks(4).tickSize(4));
}

const RUN_LABELS = { W: "W", exact: "W in exact arithmetic", KQ: "K Qᵀ" };

function drawCurves(lossParent, correlationParent, { data, step, runs }) {
  const of = (value) => Object.entries(runs).map(([name, run]) => {
    const steps = recordsOf(run.trace.steps, step);
    return { name, label: RUN_LABELS[name], steps, values: steps.map((one) => value(run, matrixAt(run.trace, one))) };
  });
  const losses = of((run, W) => riskOf(data, W));
  const values = losses.flatMap((curve) => curve.values);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  drawCurve(lossParent, "Loss", losses, [low, high > low ? high : low + 0.1], step);
  // The SVM is that of the present step.
  const correlations = of((run, W) => run.target && cosine(W, run.target));
  const near = correlations.flatMap((curve) => curve.values).filter((value) => value !== null);
  correlationParent.hidden = !near.length; // no SVM, no correlation
  if (near.length) drawCurve(correlationParent, "Correlation with the SVM", correlations, [Math.min(0, ...near), 1], step);
}
