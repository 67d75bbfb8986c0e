// From a state of the page to all that it shows. At rest the same state at the same step always gives the same picture.

const CLASS_COUNT = 3;
// Optimisers of the classes, and the norm whose largest margin each is known or conjectured to reach.
const RACES = [["normalized_gd", "frobenius"], ["sign", "max"], ["spectral", "spectral"]];
// Gap to which the SVMs of the classes are solved while a point moves: a larger one draws rings around points near the margin.
const GLANCE = 1e-6;
const BASIN_STEPS = 600;
const BASIN_REACH = 6;
// A hasty picture ends a training with more attention than this on tokens that a local optimum selects. Measured on 100
// random states, 11 of 4,900 starts had another end.
const HASTY_ATTENTION = 0.999;

const stepOf = (state) => Math.min(state.step ?? state.steps, state.steps);
const headOf = (state) => ({ v: state.v, relu: state.head === "relu" });
const startOf = ({ start, queries: [z] }) => start && start.flatMap((x) => z.map((entry) => (x * entry) / z.reduce((total, one) => total + one * one, 0)));
const nested = (flat, columns) => Array.from({ length: flat.length / columns }, (_, j) => Array.from(flat.slice(j * columns, (j + 1) * columns)));

function cosine(A, B) {
  const [a, b] = [Math.sqrt(dot(A, A)), Math.sqrt(dot(B, B))];
  return a > 0 && b > 0 ? dot(A, B) / a / b : null;
}

// Trainings of the last states, so that a step, a norm or a choice of tokens trains nothing again.
function trainings() {
  const memory = new Map();
  return (key, train) => {
    const name = JSON.stringify(key);
    if (!memory.has(name)) {
      if (memory.size > 5) memory.delete(memory.keys().next().value);
      memory.set(name, train());
    }
    return memory.get(name);
  };
}

function tracesOf(state, remember) {
  const { scene, tokens, queries, labels, v, head, optimizer, steps, numerics, start, points, classes } = state;
  if (scene === "classes") {
    return remember([points, classes, steps], () => {
      const data = classesData(state);
      return { data, runs: Object.fromEntries(RACES.map(([name]) => [name, trainW(data, name, steps)])) };
    });
  }
  return remember([tokens, queries, labels, v, head, optimizer, steps, numerics, start], () => {
    const data = trainingData(tokens, queries, labels, tokens, headOf(state), "logistic");
    const single = numerics === "float32";
    const runs = { W: trainW(data, optimizer, steps, startOf(state), single) };
    if (single) runs.exact = trainW(data, optimizer, steps, startOf(state));
    // K and Q have no start W(0) to share.
    if (!start) runs.KQ = trainKQ(data, optimizer === "gd" ? "gd" : "normalized_gd", steps, single);
    return { data, runs };
  });
}

// Classification as attention: classes are tokens, inputs (with a one for the intercept) are queries.
function classesData({ points, classes }) {
  const axes = Array.from({ length: CLASS_COUNT }, (_, c) => Array.from({ length: CLASS_COUNT }, (_, k) => (c === k ? 1 : 0)));
  const values = classes.map((own) => axes.map((_, c) => [own === c ? 1 : 0]));
  return trainingData(points.map(() => axes), points.map((at) => [...at, 1]), points.map(() => 1), values, { v: [1], relu: false }, "correlation");
}

// Rows (x_kept - x_t) z^T of the tokens where `mask` is true, with their places.
function differences({ n, T, d, m, x, z }, kept, mask) {
  const rows = [];
  for (let i = 0; i < n; i++) {
    for (let t = 0; t < T; t++) {
      if (!mask(i, t)) continue;
      const row = new Float64Array(d * m);
      for (let j = 0; j < d; j++) {
        const part = x[(i * T + kept[i]) * d + j] - x[(i * T + t) * d + j];
        for (let k = 0; k < m; k++) row[j * m + k] = part * z[i * m + k];
      }
      rows.push({ i, t, row });
    }
  }
  return rows;
}

// The SVM of selected tokens, booleans (n, T): the first of a sequence is its reference, others are tied to it.
function selectionSVM(data, selected, norm, requested) {
  const kept = selected.map((row) => row.indexOf(true));
  const rejected = differences(data, kept, (i, t) => !selected[i][t]);
  const tied = differences(data, kept, (i, t) => selected[i][t] && t !== kept[i]);
  const solution = solveSVM(rejected.map(({ row }) => row), tied.map(({ row }) => row), data.d, norm, requested);
  const { W, status, objective, gap, dual } = solution;
  const margins = selected.map((row) => row.map(() => (W ? 0 : null)));
  const support = selected.map((row) => row.map(() => false));
  const proof = selected.map(() => 0);
  // As far as the gap bounds the distance of W from the solution; of norms with several solutions, an estimate.
  const distance = W ? Math.sqrt(2 * Math.max(gap, 4 * ROUNDING)) * Math.sqrt(dot(W, W)) : 0;
  rejected.forEach(({ i, t, row }, r) => {
    if (W) {
      margins[i][t] = dot(row, W);
      support[i][t] = margins[i][t] <= 1 + distance * Math.sqrt(dot(row, row));
    }
    if (status === "INFEASIBLE") proof[i] += dual[r];
  });
  return { kept, selected, status, objective, gap, W, margins, support, proof, tied };
}

// The SVM equivalent of a W that mixes tokens: a finite part plus the coefficient of largest correlation times the SVM.
function equivalentOf(svm, attention, W, d, norm) {
  if (!svm.W || !svm.tied.length) return svm.W;
  const target = svm.tied.map(({ i, t }) => Math.log(attention[i][svm.kept[i]] / attention[i][t]));
  const finite = finitePart(svm.tied.map(({ row }) => row), target, d, norm);
  const size = dot(svm.W, svm.W);
  if (!size) return finite;
  const [f, m, own, cross] = [dot(finite, W), dot(svm.W, W), dot(finite, finite), dot(finite, svm.W)];
  const denominator = f * size - m * cross;
  const coefficient = own > 0 && denominator > 0 ? (m * own - f * cross) / denominator : (m - cross) / size;
  return finite.map((entry, k) => entry + coefficient * svm.W[k]);
}

function planePicture(state, remember) {
  const { data, runs: traces } = tracesOf(state, remember);
  const step = stepOf(state);
  const scores = nested(data.gamma, data.T);
  const best = scores.map(firstLargest);
  const runs = {};
  for (const [name, trace] of Object.entries(traces)) {
    const W = matrixAt(trace, step);
    const attention = attentionOf(data, W);
    const norm = name === "KQ" ? "nuclear" : state.head === "relu" ? "frobenius" : state.norm;
    const moved = W.some((entry) => entry !== 0);
    let selected;
    if (state.head === "relu") {
      selected = attention.map((row) => row.map((share) => !moved || share > SELECTED_SHARE));
    } else {
      const kept = state.keep === "trained" ? attention.map(firstLargest) : state.keep === "best" ? best : state.keep;
      selected = attention.map((row, i) => row.map((_, t) => t === kept[i]));
    }
    const svm = selectionSVM(data, selected, norm);
    const target = state.head === "relu" && moved ? equivalentOf(svm, attention, W, data.d, norm) : svm.W;
    const gradient = new Float64Array(trace.size);
    if (state.head === "relu") exactGradient(data)(W, gradient);
    runs[name] = {
      ...svm, attention, norm, target, trained: W, trace,
      correlation: target && cosine(W, target),
      loss: riskOf(data, W),
      ray: svm.W && raysOf(data, svm.W),
      stationary: state.head === "relu" && !gradient.some((entry) => entry !== 0),
      ended: trace.ended !== null && step > trace.ended ? trace.ended : null,
    };
  }
  const picture = { scene: "plane", step, data, scores, best, runs };
  return { ...picture, verdict: planeVerdict(state, picture) };
}

// W z of every query.
function raysOf({ n, d, m, z }, W) {
  return Array.from({ length: n }, (_, i) => Array.from({ length: d }, (_, j) => {
    let total = 0;
    for (let k = 0; k < m; k++) total += W[j * m + k] * z[i * m + k];
    return total;
  }));
}

function classesPicture(state, remember, moving) {
  const { data, runs } = tracesOf(state, remember);
  const step = stepOf(state);
  const solutions = remember([state.points, state.classes, moving], () => {
    const selected = state.classes.map((own) => Array.from({ length: CLASS_COUNT }, (_, c) => c === own));
    return Object.fromEntries(RACES.map(([, norm]) => [norm, selectionSVM(data, selected, norm, moving ? GLANCE : undefined)]));
  });
  const rows = differences(data, state.classes, (i, t) => t !== state.classes[i]);
  const races = RACES.map(([optimizer, norm]) => {
    const own = solutions[norm];
    const W = matrixAt(runs[optimizer], step);
    const margin = Math.min(...rows.map(({ row }) => dot(row, W)));
    const shares = Object.fromEntries(RACES.map(([, name]) => {
      const length = NORMS[name].value(W, data.d);
      const { objective } = solutions[name];
      return [name, objective === null || !length ? null : (margin / length) * objective];
    }));
    return {
      optimizer, norm, shares, status: own.status, objective: own.objective, gap: own.gap,
      trained: nested(W, 3), W: own.W && nested(own.W, 3),
      support: own.support.map((row) => row.some(Boolean)),
    };
  });
  return { scene: "classes", step, races, verdict: classesVerdict(races) };
}

const pictureOf = (state, remember, moving = false) => (state.scene === "classes" ? classesPicture : planePicture)(state, remember, moving);

// ---- basins: where training ends from each start W(0) z; only if all queries are equal, so that a start is a point

function basinsOf(state, side, hasty = false) {
  const { queries, tokens, labels, head, optimizer } = state;
  if (head !== "linear" || !["normalized_gd", "gd", "momentum", "sign", "mirror"].includes(optimizer)) return null;
  if (queries.some((z) => z.some((entry, k) => entry !== queries[0][k]))) return null;
  const length = Math.hypot(...queries[0]);
  // Training moves W only along that query, so only the query's length matters.
  const data = trainingData(tokens, queries.map(() => [length]), labels, tokens, headOf(state), "logistic");
  const scores = nested(data.gamma, data.T);
  const best = scores.map(firstLargest);
  const directions = [];
  const known = new Map();
  const kindOf = (W, least) => {
    const attention = attentionOf(data, W);
    if (attention.some((row) => Math.max(...row) < least)) return -1;
    const kept = attention.map(firstLargest);
    const name = kept.join();
    if (!known.has(name)) {
      const svm = selectionSVM(data, kept.map((own) => scores[0].map((_, t) => t === own)), "frobenius");
      const holds = svm.status === "OPTIMAL" && !violation(scores, kept, svm.support);
      if (holds) directions.push({ selected: kept, global: same(kept, best), count: 0 });
      known.set(name, holds ? directions.length - 1 : -1);
    }
    return known.get(name);
  };
  const arrived = hasty ? (W) => kindOf(W, HASTY_ATTENTION) >= 0 : null;
  const cells = new Int8Array(side * side);
  let row = 0;
  return {
    side, reach: BASIN_REACH, cells, directions,
    get finished() { return row === side; },
    // Trains one more row of starts, from below.
    advance() {
      const y = -BASIN_REACH + (2 * BASIN_REACH * row) / (side - 1);
      for (let column = 0; column < side; column++) {
        const x = -BASIN_REACH + (2 * BASIN_REACH * column) / (side - 1);
        const trace = trainW(data, optimizer, BASIN_STEPS, [x / length, y / length], false, arrived);
        const kind = kindOf(matrixAt(trace, trace.steps), ALL_ATTENTION);
        cells[row * side + column] = kind;
        if (kind >= 0) directions[kind].count += 1;
      }
      row += 1;
    },
  };
}
