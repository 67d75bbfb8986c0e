// Max-margin problems: the smallest W with <A_r, W> >= 1 for every row, and <E_r, W> = 0 for every tie.
//
// The Frobenius norm has an active set, which ends after finitely many steps. The other norms have a barrier: Newton
// centres it for a falling weight mu, and the multipliers that it leaves prove a bound. Nuclear norm and sum of entries
// are solved in the dual, whose ball is the spectral one or the cube; the others as the largest margin within the ball.

const OPTIMAL_GAP = 1e-9;
const REQUESTED_GAP = 5e-11; // ends the barrier's path; rounding ends it before where the data are badly scaled
const FAR = 1.2; // margin under the Frobenius SVM from which on a row joins a barrier only if it is violated without it
const MOST_ROUNDS = 24;
const CENTRED = 0.1; // Newton decrement at which a point is central
const SHRINK = 16; // of the barrier's weight
const FAST_SHRINK = 64; // where the central path is nearly straight: after a weight of few Newton steps
const FEW_STEPS = 4;
const STALLED = 1e-6; // gap below which one that does not fall is rounding

const dot = (a, b) => { let total = 0; for (let k = 0; k < a.length; k++) total += a[k] * b[k]; return total; };
const combine = (rows, weights, size) => {
  const total = new Float64Array(size);
  for (let r = 0; r < rows.length; r++) for (let k = 0; k < size; k++) total[k] += weights[r] * rows[r][k];
  return total;
};
const stepped = (y, length, step) => {
  const next = new Float64Array(y.length);
  for (let r = 0; r < next.length; r++) next[r] = y[r] + length * step[r];
  return next;
};

const spread = (places, values, size) => {
  const all = new Float64Array(size);
  places.forEach((r, k) => { all[r] += values[k]; });
  return all;
};

// Solves the symmetric positive definite M y = b; a pivot that is only rounding counts as infinite.
function solveSymmetric(M, b) {
  const size = b.length;
  const L = M.map((row) => Float64Array.from(row));
  const y = Float64Array.from(b);
  for (let j = 0; j < size; j++) {
    const before = L[j][j];
    for (let k = 0; k < j; k++) L[j][j] -= L[j][k] * L[j][k];
    L[j][j] = L[j][j] > 1e-16 * before ? Math.sqrt(L[j][j]) : Infinity;
    for (let i = j + 1; i < size; i++) {
      for (let k = 0; k < j; k++) L[i][j] -= L[i][k] * L[j][k];
      L[i][j] /= L[j][j];
    }
  }
  for (let j = 0; j < size; j++) {
    for (let k = 0; k < j; k++) y[j] -= L[j][k] * y[k];
    y[j] /= L[j][j];
  }
  for (let j = size - 1; j >= 0; j--) {
    for (let i = j + 1; i < size; i++) y[j] -= L[i][j] * y[i];
    y[j] /= L[j][j];
  }
  return y;
}

// Solves a Gram system G y = b for rows, with two steps of refinement.
function solveGram(rows, b, size) {
  if (!rows.length) return new Float64Array(0);
  const gram = rows.map((one) => rows.map((other) => dot(one, other)));
  let y = solveSymmetric(gram, b);
  for (let k = 0; k < 2; k++) {
    const W = combine(rows, y, size);
    const step = solveSymmetric(gram, rows.map((row, r) => b[r] - dot(row, W)));
    y = y.map((entry, r) => entry + step[r]);
  }
  return y;
}

// Rows less their projection onto the ties.
function untied(rows, ties, size) {
  if (!ties.length) return rows;
  return rows.map((row) => {
    const shares = solveGram(ties, ties.map((tie) => dot(tie, row)), size);
    const along = combine(ties, shares, size);
    return row.map((entry, k) => entry - along[k]);
  });
}

// The Frobenius SVM by a dual active set; `proof` holds Farkas multipliers if there is none.
function activeSet(rows, size) {
  let active = [];
  let dual = [];
  let W = new Float64Array(size);
  const lengths = rows.map((row) => Math.sqrt(dot(row, row)));
  for (let pivot = 0; pivot < 50 * (rows.length + 1); pivot++) {
    let worst = -1;
    let lowest = 0;
    rows.forEach((row, r) => {
      const slack = dot(row, W) - 1;
      const noise = 1e-13 * (1 + lengths[r] * Math.sqrt(dot(W, W)));
      if (!active.includes(r) && slack < -noise && (worst < 0 || slack / (lengths[r] || 1e-300) < lowest)) {
        worst = r;
        lowest = slack / (lengths[r] || 1e-300);
      }
    });
    if (worst < 0) {
      dual = Array.from(solveGram(active.map((r) => rows[r]), active.map(() => 1), size));
      W = combine(active.map((r) => rows[r]), dual, size);
      return { W, dual: spread(active, dual, rows.length), proof: null };
    }
    let price = 0;
    for (;;) {
      const faces = active.map((r) => rows[r]);
      const shares = solveGram(faces, faces.map((row) => dot(row, rows[worst])), size);
      const along = combine(faces, shares, size);
      const step = rows[worst].map((entry, k) => entry - along[k]);
      const square = dot(step, step);
      let blocking = -1;
      let length = Infinity;
      shares.forEach((share, k) => {
        if (share > 1e-12 && dual[k] / share < length) [blocking, length] = [k, dual[k] / share];
      });
      const free = square > 1e-20 * lengths[worst] ** 2;
      if (!free && blocking < 0) return { W: null, dual: null, proof: spread([...active, worst], [...Array.from(shares, (share) => Math.max(0, -share)), 1], rows.length) };
      const full = free ? (1 - dot(rows[worst], W)) / square : Infinity;
      const taken = Math.min(full, length);
      dual = dual.map((value, k) => value - taken * shares[k]);
      price += taken;
      if (free) W = W.map((entry, k) => entry + taken * step[k]);
      if (full <= length) {
        active.push(worst);
        dual.push(price);
        break;
      }
      active = active.filter((_, k) => k !== blocking);
      dual = dual.filter((_, k) => k !== blocking);
    }
  }
  return { W: null, dual: null, proof: null };
}

// ---- norms: value, dual value, and a barrier of the unit ball with its gradient and Hessian (null outside)

const singularValues = (W, d) => singular(W, d, W.length / d).lengths;
const sum = (values) => values.reduce((total, value) => total + value, 0);
const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
const power = (W, p) => largest(W) * sum(Array.from(W, (entry) => (Math.abs(entry) / (largest(W) || 1)) ** p)) ** (1 / p);

const NORMS = {
  frobenius: { value: (W) => Math.sqrt(dot(W, W)), dual: (W) => Math.sqrt(dot(W, W)) },
  nuclear: { value: (W, d) => sum(singularValues(W, d)), dual: (W, d) => Math.max(...singularValues(W, d)), inDual: spectralBall },
  spectral: { value: (W, d) => Math.max(...singularValues(W, d)), dual: (W, d) => sum(singularValues(W, d)), ball: spectralBall },
  max: { value: largest, dual: (W) => sum(Array.from(W, Math.abs)), ball: cube },
  1: { value: (W) => sum(Array.from(W, Math.abs)), dual: largest, inDual: cube },
  3: { value: (W) => power(W, 3), dual: (W) => power(W, 1.5), ball: cubicBall },
};

// A barrier's `roots` are rows whose squares add up to its Hessian: directions that hardly curve keep their digits next to
// those that curve without bound.
function spectralBall(M, d) {
  const m = M.length / d;
  const { rotation, rows, lengths } = singular(M, d, m);
  if (!lengths.every((length) => length < 1)) return null;
  // Singular pairs first, largest first, then what completes the bases.
  const order = lengths.map((_, k) => k).sort((a, b) => lengths[b] - lengths[a]);
  const left = order.map((k) => rotation.subarray(k * d, (k + 1) * d));
  const sigma = order.map((k) => lengths[k]).slice(0, Math.min(d, m));
  const right = completed(sigma.map((length, k) => rows.subarray(order[k] * m, (order[k] + 1) * m).map((entry) => (length ? entry / length : 0))), m);
  const room = (k) => (k < sigma.length ? (1 - sigma[k]) * (1 + sigma[k]) : 1);
  const outer = (a, b, factor) => {
    const matrix = new Float64Array(d * m);
    for (let j = 0; j < d; j++) for (let k = 0; k < m; k++) matrix[j * m + k] = factor * left[a][j] * right[b][k];
    return matrix;
  };
  return {
    value: -sum(sigma.map((_, k) => Math.log(room(k)))),
    gradient: combine(sigma.map((_, k) => outer(k, k, 1)), sigma.map((length, k) => (2 * length) / room(k)), d * m),
    roots: () => left.flatMap((_, a) => right.flatMap((_, b) => {
      if (a === b) return [outer(a, a, Math.sqrt(2 * (1 + sigma[a] ** 2)) / room(a))];
      const [low, high] = [Math.min(a, b), Math.max(a, b)];
      if (high >= sigma.length) return [outer(a, b, Math.sqrt(2 / room(low)))];
      if (a > b) return [];
      const product = sigma[a] * sigma[b];
      return [1, -1].map((sign) => {
        const factor = Math.sqrt((1 + sign * product) / room(a) / room(b));
        const other = outer(b, a, sign * factor);
        return outer(a, b, factor).map((entry, k) => entry + other[k]);
      });
    })),
  };
}

// An orthonormal basis whose first vectors are given; zeros stand for any.
function completed(vectors, m) {
  const basis = vectors.filter((vector) => vector.some((entry) => entry !== 0));
  const result = [...vectors];
  while (result.length < m) result.push(new Float64Array(m));
  for (let k = 0; k < m; k++) {
    if (result[k].some((entry) => entry !== 0)) continue;
    const rests = Array.from({ length: m }, (_, axis) => {
      let rest = Float64Array.from({ length: m }, (_, j) => (j === axis ? 1 : 0));
      for (let twice = 0; twice < 2; twice++) basis.forEach((one) => { const share = dot(one, rest); rest = rest.map((entry, j) => entry - share * one[j]); });
      return rest;
    });
    const longest = rests.reduce((most, rest) => (dot(rest, rest) > dot(most, most) ? rest : most));
    const length = Math.sqrt(dot(longest, longest));
    result[k] = longest.map((entry) => entry / length);
    basis.push(result[k]);
  }
  return result;
}

// A multiple of a unit vector.
function along(size, axis, entry) {
  const vector = new Float64Array(size);
  vector[axis] = entry;
  return vector;
}

function cube(M) {
  const room = Array.from(M, (entry) => (1 - entry) * (1 + entry));
  if (!room.every((one) => one > 0)) return null;
  return {
    value: -sum(room.map(Math.log)),
    gradient: M.map((entry, k) => (2 * entry) / room[k]),
    roots: () => room.map((one, k) => along(M.length, k, Math.sqrt(2 * (1 + M[k] * M[k])) / one)),
  };
}

function cubicBall(M) {
  const room = 1 - sum(Array.from(M, (entry) => Math.abs(entry) ** 3));
  if (!(room > 0)) return null;
  const gradient = M.map((entry) => (3 * entry * Math.abs(entry)) / room);
  return {
    value: -Math.log(room),
    gradient,
    roots: () => [gradient, ...Array.from(M, (one, k) => along(M.length, k, Math.sqrt((6 * Math.abs(one)) / room)))],
  };
}

// Solves R^T R y = b, where R is the triangle of the rows: long rows first and pivoted columns, so that short ones count.
function solveRows(rows, b) {
  const size = b.length;
  const height = rows.length;
  const norms = rows.map((row) => dot(row, row));
  const sorted = rows.map((_, r) => r).sort((p, q) => norms[q] - norms[p]);
  const table = new Float64Array(size * height); // one column after the other
  for (let r = 0; r < height; r++) for (let k = 0; k < size; k++) table[k * height + r] = rows[sorted[r]][k];
  const order = Array.from(b, (_, k) => k);
  const rank = Math.min(size, height);
  const v = new Float64Array(height);
  for (let j = 0; j < rank; j++) {
    let longest = j;
    let most = -1;
    for (let k = j; k < size; k++) {
      let square = 0;
      for (let r = j; r < height; r++) square += table[order[k] * height + r] ** 2;
      if (square > most) [longest, most] = [k, square];
    }
    [order[j], order[longest]] = [order[longest], order[j]];
    const pivot = order[j] * height;
    const length = Math.sqrt(most);
    if (!length) break;
    const alpha = table[pivot + j] > 0 ? -length : length;
    for (let r = j; r < height; r++) v[r] = table[pivot + r];
    v[j] -= alpha;
    const square = most - table[pivot + j] ** 2 + v[j] ** 2;
    for (let other = j; other < size; other++) {
      const column = order[other] * height;
      let share = 0;
      for (let r = j; r < height; r++) share += v[r] * table[column + r];
      share *= 2 / square;
      for (let r = j; r < height; r++) table[column + r] -= share * v[r];
    }
  }
  const y = new Float64Array(size);
  const at = (row, j) => table[order[j] * height + row];
  const least = rank ? Math.abs(at(0, 0)) * 1e-18 : 0;
  for (let j = 0; j < rank; j++) {
    let rest = b[order[j]];
    for (let k = 0; k < j; k++) rest -= at(k, j) * y[k];
    y[j] = Math.abs(at(j, j)) > least ? rest / at(j, j) : 0;
  }
  for (let j = rank - 1; j >= 0; j--) {
    for (let k = j + 1; k < rank; k++) y[j] -= at(j, k) * y[k];
    y[j] = Math.abs(at(j, j)) > least ? y[j] / at(j, j) : 0;
  }
  const solution = new Float64Array(size);
  for (let j = 0; j < rank; j++) solution[order[j]] = y[j];
  return solution;
}

// Maximises <cost, y> + mu (sum of log slacks - barrier of sum_r y_r M_r) for a falling mu, from a y and the first mu.
// `slacks` are the rows S of slacks S y; `read` takes y, the barrier's gradient times mu and the multipliers, and returns
// the gap that they prove, until it is the one requested.
function followBarrier(cost, matrices, slacks, ball, d, [start, weight], requested, read) {
  const size = matrices[0].length;
  let y = Float64Array.from(start);
  let mu = weight;
  let ratio = 1; // of this weight to the last one
  let gap = Infinity;
  const at = (point) => {
    const rooms = slacks.map((row) => dot(row, point));
    if (!rooms.every((room) => room > 0)) return null;
    const barrier = ball(combine(matrices, point, size), d);
    return barrier && { rooms, barrier, value: dot(cost, point) / mu + sum(rooms.map(Math.log)) - barrier.value };
  };
  const newton = ({ rooms, barrier }) => {
    const pushes = slacks.map((row, s) => {
      const push = new Float64Array(row.length);
      for (let r = 0; r < push.length; r++) push[r] = row[r] / rooms[s];
      return push;
    });
    const roots = barrier.roots();
    const images = roots.map((root) => {
      const image = new Float64Array(matrices.length);
      for (let r = 0; r < image.length; r++) image[r] = dot(root, matrices[r]);
      return image;
    });
    const slope = new Float64Array(matrices.length);
    for (let r = 0; r < slope.length; r++) slope[r] = cost[r] / mu - dot(matrices[r], barrier.gradient);
    for (const push of pushes) for (let r = 0; r < slope.length; r++) slope[r] += push[r];
    const step = solveRows([...pushes, ...images], slope);
    return { step, decrement: Math.sqrt(Math.max(0, dot(step, slope))), roots };
  };
  let here = at(y);
  for (let round = 0; round < MOST_ROUNDS; round++) {
    let direction = newton(here);
    let steps = 0;
    for (; steps < 20 && direction.decrement > CENTRED; steps++) {
      const { step, decrement } = direction;
      let next = null;
      // A self-concordant barrier allows the damped step; far from the centre longer ones are tried first. The first
      // step of a weight follows the tangent of the central path, which is a share of the step to the new centre.
      let length = decrement > 0.5 ? 4 / (1 + decrement) : 1;
      if (!steps && round) length = ratio;
      for (; length > 1e-9; length /= 2) {
        next = at(stepped(y, length, step));
        if (next && (decrement <= 0.5 || next.value >= here.value + 0.05 * length * decrement ** 2)) break;
        next = null;
      }
      if (!next) break;
      y = stepped(y, length, step);
      here = next;
      direction = newton(here);
    }
    // Multipliers and gradient as after one more step: their rounding then is that of the step, not of the slacks.
    const moved = combine(matrices, direction.step, size);
    const gradient = combine([here.barrier.gradient, ...direction.roots], [mu, ...direction.roots.map((root) => mu * dot(root, moved))], size);
    const multipliers = here.rooms.map((room, s) => Math.max(0, (mu / room) * (1 - dot(slacks[s], direction.step) / room)));
    const now = read(y, gradient, multipliers);
    if (now < requested || (gap < STALLED && now >= gap)) return;
    gap = now;
    // The gap is in proportion to the weight, and a smaller one than asked for costs digits.
    ratio = Math.max(1 / (steps > FEW_STEPS ? SHRINK : FAST_SHRINK), Math.min(1 / 2, requested / gap / 2));
    here.value -= dot(cost, y) / mu;
    mu *= ratio;
    here.value += dot(cost, y) / mu;
  }
}

// Solves the SVM of a norm. Margins include one for every row; `gap` is what the multipliers prove, to rounding.
function solveSVM(rows, ties, d, norm, requested = REQUESTED_GAP) {
  const size = (rows[0] ?? ties[0] ?? []).length;
  if (!rows.length) return { status: "OPTIMAL", W: new Float64Array(size), objective: 0, gap: 0, dual: [] };
  const { value, dual } = NORMS[norm];
  const free = untied(rows, ties, size);
  const base = activeSet(free, size);
  if (base.proof) return { status: "INFEASIBLE", W: null, objective: null, gap: null, dual: base.proof };
  if (!base.W) return { status: "UNDECIDED", W: null, objective: null, gap: null, dual: null };
  const none = { objective: Infinity, gap: Infinity };
  let chosen = rows.map((_, r) => r);
  let best = none;
  // Every W with margin one has norm at least sum(dual) / dual norm of sum_r dual_r A_r, whatever the ties' multipliers.
  const offer = (W, multipliers, matrix) => {
    const least = Math.min(...chosen.map((r) => dot(rows[r], W)));
    if (!(least > 0)) return Infinity;
    const scaled = Float64Array.from(W, (entry) => entry / least);
    const objective = value(scaled, d);
    const gap = Math.max(0, 1 - sum(multipliers) / dual(matrix, d) / objective);
    if (gap < best.gap) best = { W: scaled, objective, gap, dual: spread(chosen, multipliers, rows.length) };
    return gap;
  };
  if (norm === "frobenius") {
    const multipliers = base.dual.map((entry) => Math.max(entry, 0));
    offer(base.W, multipliers, combine(free, multipliers, size));
  } else {
    chosen = chosen.filter((r) => dot(free[r], base.W) < FAR);
    for (let missed = chosen; missed.length; chosen = [...chosen, ...missed]) {
      best = none;
      solveInBall(chosen.map((r) => rows[r]), ties, d, norm, base.W, requested, offer);
      missed = best.W ? rows.flatMap((row, r) => (chosen.includes(r) || dot(row, best.W) >= 1 ? [] : [r])) : [];
    }
  }
  return { status: best.gap <= OPTIMAL_GAP ? "OPTIMAL" : "UNDECIDED", ...best };
}

// Follows the barrier of a norm from the Frobenius SVM; `offer` takes W, multipliers of rows, and their matrix.
function solveInBall(rows, ties, d, norm, base, requested, offer) {
  const { value, dual, ball, inDual } = NORMS[norm];
  const size = base.length;
  const unit = Math.sqrt(dot(base, base));
  const scaled = rows.map((row) => row.map((entry) => entry * unit)); // whose Frobenius SVM has norm one
  const axes = Array.from({ length: size }, (_, k) => along(size, k, 1));
  if (ball) {
    const slacks = scaled.map((row) => Float64Array.of(...row, -1));
    const length = Math.max(unit, value(base, d));
    const start = [...base.map((entry) => (0.7 * entry) / length), (0.3 * unit) / length];
    followBarrier([...axes.map(() => 0), 1], [...axes, new Float64Array(size)], slacks, ball, d, [start, 0.01], requested, (y, _, multipliers) =>
      offer(y.subarray(0, size), multipliers, combine(rows, multipliers, size)));
  } else {
    const matrices = [...scaled, ...ties];
    const cost = matrices.map((_, r) => (r < rows.length ? 1 : 0));
    const slacks = scaled.map((_, r) => along(cost.length, r, 1));
    const small = 0.5 / Math.max(...scaled.map((row) => dual(row, d))) / rows.length;
    followBarrier(cost, matrices, slacks, inDual, d, [cost.map((one) => small * one), 1], requested, (y, W) =>
      offer(onTies(W, ties, size), Array.from(y.subarray(0, rows.length)), combine([...rows, ...ties], [...y.subarray(0, rows.length), ...y.subarray(rows.length).map((entry) => entry / unit)], size)));
  }
}

// W less its part along the ties, which is rounding.
function onTies(W, ties, size) {
  return ties.length ? untied([W], ties, size)[0] : W;
}

// The smallest W with <E_r, W> = target_r.
function finitePart(ties, target, d, norm) {
  const size = ties[0].length;
  const start = combine(ties, solveGram(ties, target, size), size);
  if (norm === "frobenius" || !start.some((entry) => entry !== 0)) return start;
  const unit = Math.sqrt(dot(start, start));
  let best = start;
  let gap = Infinity;
  followBarrier(target.map((entry) => entry / unit), ties, [], spectralBall, d, [ties.map(() => 0), 1], REQUESTED_GAP, (y, W) => {
    const shift = combine(ties, solveGram(ties, ties.map((tie, r) => target[r] / unit - dot(tie, W)), size), size);
    const exact = W.map((entry, k) => (entry + shift[k]) * unit);
    const bound = dot(target, y) / Math.max(1, NORMS.nuclear.dual(combine(ties, y, size), d));
    const own = 1 - bound / NORMS.nuclear.value(exact, d);
    if (own < gap) [best, gap] = [exact, own];
    return own;
  });
  return best;
}
