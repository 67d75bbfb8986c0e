// Exact training of W and of (K, Q), step by step as in attsvm.training.
//
// Every factor that vanishes with saturation goes into one exponent per query, and the largest is factored out: the
// gradient is exp(scale) / n times a matrix of ordinary size, however saturated the softmax is.

// attsvm starts K and Q from K = 0.1 N(0, 1) of numpy.random.default_rng([0, 0]) and Q = 0; the first four draws.
const KEY_DRAWS = [0.1257302210933933, -0.1321048632913019, 0.6404226504432821, 0.10490011715303971];
const ROUNDING = 2 ** -52;
const LARGEST_ENTRY = 1e150; // beyond it squares overflow, and training ends
const ASK_EVERY = 50; // steps
const POLYAK_LONGEST = 10;
const MIRROR_POWER = 3;
const GAUSS_NODES = [-0.906179845938664, -0.5384693101056831, 0, 0.5384693101056831, 0.906179845938664];
const GAUSS_WEIGHTS = [0.23692688505618908, 0.47862867049936647, 0.5688888888888889, 0.47862867049936647, 0.23692688505618908];

// Flat arrays of a problem: tokens (n, T, d), queries (n, m), gamma (n, T) = label times score.
function trainingData(tokens, queries, labels, values, head, loss) {
  const [n, T, d, m] = [tokens.length, tokens[0].length, tokens[0][0].length, queries[0].length];
  const gamma = values.map((row, i) => row.map((x) => labels[i] * predict(head, x)));
  return { n, T, d, m, x: Float64Array.from(tokens.flat(2)), z: Float64Array.from(queries.flat()), labels, head, loss, gamma: Float64Array.from(gamma.flat()) };
}

function predict(head, x) {
  return head.v.reduce((total, weight, j) => total + weight * (head.relu ? Math.max(x[j], 0) : x[j]), 0);
}

// Logits (n, T) of W (d, m), into `logits`.
function logitsOf({ n, T, d, m, x, z }, W, logits) {
  for (let i = 0; i < n; i++) {
    for (let t = 0; t < T; t++) logits[i * T + t] = 0;
    for (let j = 0; j < d; j++) {
      let rotated = 0;
      for (let k = 0; k < m; k++) rotated += W[j * m + k] * z[i * m + k];
      for (let t = 0; t < T; t++) logits[i * T + t] += x[(i * T + t) * d + j] * rotated;
    }
  }
}

function attentionOf(data, W) {
  const shares = new Float64Array(data.n * data.T);
  logitsOf(data, W, shares);
  return Array.from({ length: data.n }, (_, i) => {
    const row = new Array(data.T);
    let highest = -Infinity;
    let total = 0;
    for (let t = 0; t < data.T; t++) highest = Math.max(highest, shares[i * data.T + t]);
    for (let t = 0; t < data.T; t++) total += row[t] = Math.exp(shares[i * data.T + t] - highest);
    for (let t = 0; t < data.T; t++) row[t] /= total;
    return row;
  });
}

const firstLargest = (row) => row.reduce((best, value, t) => (value > row[best] ? t : best), 0);
const softplus = (u) => Math.max(u, 0) + Math.log1p(Math.exp(-Math.abs(u)));

// The mean risk of a matrix.
function riskOf(data, W) {
  const { n, T, d, head, labels, gamma } = data;
  let sum = 0;
  attentionOf(data, W).forEach((row, i) => {
    let margin = 0;
    if (head.relu) {
      const output = Array.from({ length: d }, (_, j) => row.reduce((total, share, t) => total + share * data.x[(i * T + t) * d + j], 0));
      margin = labels[i] * predict(head, output);
    } else {
      for (let t = 0; t < T; t++) margin += row[t] * gamma[i * T + t];
    }
    sum += softplus(-margin);
  });
  return sum / n;
}

// Returns a function that writes the gradient in W and returns its exponent; grad L = exp(exponent) / n * grad.
function exactGradient(data) {
  const { n, T, d, m, x, z, head, labels, loss } = data;
  const weights = new Float64Array(n * T);
  const tops = new Int32Array(n);
  const exponents = new Float64Array(n);
  const gamma = Float64Array.from(data.gamma);
  const output = new Float64Array(d);

  // A head that is not linear scores tokens by its slope at the present output.
  function scoreBySlope(i, base, top) {
    let total = 1;
    for (let j = 0; j < d; j++) output[j] = 0;
    const highest = weights[base + top];
    for (let t = 0; t < T; t++) if (t !== top) total += Math.exp(weights[base + t] - highest);
    for (let j = 0; j < d; j++) output[j] = x[(base + top) * d + j];
    for (let t = 0; t < T; t++) {
      if (t === top) continue;
      const share = Math.exp(weights[base + t] - highest) / total;
      for (let j = 0; j < d; j++) output[j] += share * (x[(base + t) * d + j] - x[(base + top) * d + j]);
    }
    let margin = 0;
    for (let j = 0; j < d; j++) margin += labels[i] * head.v[j] * Math.max(output[j], 0);
    for (let t = 0; t < T; t++) {
      let score = 0; // relative to the top token, so that equal scores are exactly equal
      for (let j = 0; j < d; j++) if (output[j] > 0) score += head.v[j] * (x[(base + top) * d + j] - x[(base + t) * d + j]);
      gamma[base + t] = -labels[i] * score;
    }
    gamma[base + top] = 0;
    return margin;
  }

  return (W, grad) => {
    logitsOf(data, W, weights);
    let scale = -Infinity;
    for (let i = 0; i < n; i++) {
      const base = i * T;
      let top = 0;
      for (let t = 1; t < T; t++) if (weights[base + t] > weights[base + top]) top = t;
      const highest = weights[base + top];
      const slopeMargin = head.relu ? scoreBySlope(i, base, top) : 0;
      const best = gamma[base + top];
      let second = -Infinity; // the highest logit of a token whose score differs
      for (let t = 0; t < T; t++) if (t !== top && weights[base + t] > second && gamma[base + t] !== best) second = weights[base + t];
      const near = second - highest;
      const share = Math.exp(near);
      let rest = 0;
      let push = 0;
      let tied = 0;
      for (let t = 0; t < T; t++) {
        let mass = 0;
        if (t !== top) {
          const gap = best - gamma[base + t];
          if (gap !== 0) {
            mass = weights[base + t] === second ? 1 : Math.exp(weights[base + t] - second);
            rest += mass;
            push += mass * gap;
          } else {
            mass = Math.exp(weights[base + t] - highest);
            tied += mass;
          }
        }
        weights[base + t] = mass;
      }
      const total = 1 + share * rest + tied;
      push /= total;
      const drop = share * push;
      const margin = head.relu ? slopeMargin : best - drop;
      let factor = 1 / total;
      let exponent = near;
      if (loss === "logistic") {
        factor /= 1 + Math.exp(-Math.abs(margin));
        exponent -= Math.max(margin, 0);
      }
      for (let t = 0; t < T; t++) {
        const gap = best - gamma[base + t];
        weights[base + t] *= factor * (gap !== 0 ? gap - drop : -push);
      }
      tops[i] = top;
      exponents[i] = exponent;
      scale = Math.max(scale, exponent);
    }
    if (scale === -Infinity) scale = 0;
    grad.fill(0);
    for (let i = 0; i < n; i++) {
      const factor = Math.exp(exponents[i] - scale);
      let rest = 0;
      for (let t = 0; t < T; t++) {
        weights[i * T + t] *= factor;
        rest += weights[i * T + t];
      }
      weights[i * T + tops[i]] = -rest;
      pullBack(i, weights, grad);
    }
    return scale;
  };

  function pullBack(i, pulled, grad) {
    for (let j = 0; j < d; j++) {
      let average = 0;
      for (let t = 0; t < T; t++) average += pulled[i * T + t] * x[(i * T + t) * d + j];
      for (let k = 0; k < m; k++) grad[j * m + k] += average * z[i * m + k];
    }
  }
}

// The gradient as plain softmax in single precision gives it.
function singleGradient(data) {
  const f = Math.fround;
  const { n, T, d, m, head, labels } = data;
  const [x, z, gamma] = [data.x, data.z, data.gamma].map((array) => Float32Array.from(array));
  const shares = new Float32Array(T);
  const pulls = new Float32Array(T);
  const slopes = new Float32Array(d);
  return (W, grad) => {
    grad.fill(0);
    for (let i = 0; i < n; i++) {
      const at = (t, j) => x[(i * T + t) * d + j];
      let highest = -Infinity;
      let total = 0;
      for (let t = 0; t < T; t++) {
        let logit = 0;
        for (let j = 0; j < d; j++) {
          let rotated = 0;
          for (let k = 0; k < m; k++) rotated = f(rotated + f(f(W[j * m + k]) * z[i * m + k]));
          logit = f(logit + f(at(t, j) * rotated));
        }
        shares[t] = logit;
        highest = Math.max(highest, logit);
      }
      for (let t = 0; t < T; t++) total = f(total + (shares[t] = f(Math.exp(f(shares[t] - highest)))));
      let margin = 0;
      for (let t = 0; t < T; t++) shares[t] = f(shares[t] / total);
      if (head.relu) {
        for (let j = 0; j < d; j++) {
          let output = 0;
          for (let t = 0; t < T; t++) output = f(output + f(shares[t] * at(t, j)));
          margin = f(margin + f(labels[i] * head.v[j] * Math.max(output, 0)));
          slopes[j] = output > 0 ? labels[i] * head.v[j] : 0;
        }
      } else {
        for (let t = 0; t < T; t++) margin = f(margin + f(shares[t] * gamma[i * T + t]));
      }
      const slope = f(-1 / (1 + Math.exp(margin)));
      let mean = 0;
      for (let t = 0; t < T; t++) {
        let score = head.relu ? 0 : gamma[i * T + t];
        if (head.relu) for (let j = 0; j < d; j++) score = f(score + f(slopes[j] * at(t, j)));
        pulls[t] = slope * score;
        mean = f(mean + f(shares[t] * pulls[t]));
      }
      for (let j = 0; j < d; j++) {
        let average = 0;
        for (let t = 0; t < T; t++) average = f(average + f(f(shares[t] * f(pulls[t] - mean)) * at(t, j)));
        for (let k = 0; k < m; k++) grad[j * m + k] = f(grad[j * m + k] + f(average * z[i * m + k]));
      }
    }
    return 0;
  };
}

// Loops of training allocate nothing: arrays' own methods call a function per entry.
function squares(array) {
  let sum = 0;
  for (let k = 0; k < array.length; k++) sum += array[k] * array[k];
  return sum;
}

const lengthOf = (array) => Math.sqrt(squares(array)) || 1;

// A running mean whose size leaves the range of numbers: mantissa times 2 ** exponent, both per array.
function scaledMean(size) {
  const mean = { mantissa: new Float64Array(size), log: -Infinity };
  mean.mixed = (keep, weight, value, log) => {
    const top = Math.max(mean.log, log);
    const [old, fresh] = [Math.exp(mean.log - top) * keep, Math.exp(log - top) * weight];
    return [mean.mantissa.map((entry, k) => entry * old + value[k] * fresh), top];
  };
  mean.update = (keep, weight, value, log) => {
    const [mantissa, top] = mean.mixed(keep, weight, value, log);
    const largest = mantissa.reduce((most, entry) => Math.max(most, Math.abs(entry)), 0);
    const shift = largest > 0 ? Math.floor(Math.log2(largest)) + 1 : 0;
    mean.mantissa = mantissa.map((entry) => entry * 2 ** -shift);
    mean.log = top + Math.LN2 * shift;
  };
  return mean;
}

// U V^T over the singular values of G that are more than rounding; G has d rows and m columns.
function polarFactor(G, d, m) {
  const { rotation, rows, lengths } = singular(G, d, m);
  const noise = Math.max(...lengths) * Math.max(d, m) * ROUNDING;
  const polar = new Float64Array(d * m);
  for (let k = 0; k < d; k++) {
    if (!(lengths[k] > noise)) continue;
    for (let j = 0; j < d; j++) for (let c = 0; c < m; c++) polar[j * m + c] += (rotation[k * d + j] * rows[k * m + c]) / lengths[k];
  }
  return polar;
}

// One-sided Jacobi: rotates the rows of G until they are orthogonal; small singular values keep their digits.
function singular(G, d, m) {
  const rows = G.slice();
  const rotation = new Float64Array(d * d);
  for (let k = 0; k < d; k++) rotation[k * (d + 1)] = 1;
  for (let sweep = 0; sweep < 12; sweep++) {
    let rotated = false;
    for (let p = 0; p < d; p++) {
      for (let q = p + 1; q < d; q++) {
        let pp = 0;
        let qq = 0;
        let pq = 0;
        for (let k = 0; k < m; k++) {
          const a = rows[p * m + k];
          const b = rows[q * m + k];
          pp += a * a;
          qq += b * b;
          pq += a * b;
        }
        if (Math.abs(pq) <= 1e-16 * Math.sqrt(pp * qq) || pq === 0) continue;
        rotated = true;
        const half = (qq - pp) / (2 * pq);
        const tangent = (half < 0 ? -1 : 1) / (Math.abs(half) + Math.sqrt(1 + half * half));
        const cosine = 1 / Math.sqrt(1 + tangent * tangent);
        turnRows(rows, m, p, q, cosine, cosine * tangent);
        turnRows(rotation, d, p, q, cosine, cosine * tangent);
      }
    }
    if (!rotated) break;
  }
  const lengths = new Array(d);
  for (let k = 0; k < d; k++) {
    let square = 0;
    for (let c = k * m; c < (k + 1) * m; c++) square += rows[c] * rows[c];
    lengths[k] = Math.sqrt(square);
  }
  return { rotation, rows, lengths };
}

function turnRows(array, width, p, q, c, s) {
  for (let k = 0; k < width; k++) {
    const a = array[p * width + k];
    const b = array[q * width + k];
    array[p * width + k] = c * a - s * b;
    array[q * width + k] = s * a + c * b;
  }
}

// n (L(W) - L*) as mantissa and exponent, where L* attends to the best tokens only; for linear heads.
function excessOf(data, W) {
  const { n, T, gamma } = data;
  const logits = new Float64Array(n * T);
  logitsOf(data, W, logits);
  const parts = Array.from({ length: n }, (_, i) => {
    const row = logits.subarray(i * T, (i + 1) * T);
    const top = firstLargest(row);
    let tail = 0;
    row.forEach((logit, t) => { if (t !== top) tail += Math.exp(logit - row[top]); });
    const scores = gamma.subarray(i * T, (i + 1) * T);
    const best = Math.max(...scores);
    const logs = Array.from(row, (logit, t) => (scores[t] === best ? -Infinity : logit - row[top] - Math.log1p(tail)));
    let exponent = Math.max(...logs);
    if (exponent === -Infinity) exponent = 0;
    let mantissa = logs.reduce((sum, log, t) => sum + Math.exp(log - exponent) * (best - scores[t]), 0);
    const drop = Math.exp(exponent) * mantissa;
    const margin = best - drop;
    const slope = -softplus(margin);
    if (Math.abs(drop) < 0.1) {
      const mean = GAUSS_NODES.reduce((sum, node, k) => sum + Math.exp(-softplus(margin + (drop * (1 + node)) / 2) - slope) * GAUSS_WEIGHTS[k], 0) / 2;
      return [mantissa * mean, exponent + slope];
    }
    return [softplus(-margin) - softplus(-best), 0];
  });
  const top = parts.reduce((most, [mantissa, exponent]) => (mantissa === 0 ? most : Math.max(most, exponent)), -Infinity);
  const scale = top === -Infinity ? 0 : top;
  return [parts.reduce((sum, [mantissa, exponent]) => sum + mantissa * Math.exp(exponent - scale), 0), scale];
}

// The optimisers of W by name: what makes step k (from 0) of W in place, from a gradient whose exponent is `log`.
const OPTIMIZERS = {
  normalized_gd: () => (W, G) => {
    const factor = 0.1 / lengthOf(G);
    for (let j = 0; j < W.length; j++) W[j] -= factor * G[j];
  },
  gd: ({ n }) => (W, G, log) => {
    const factor = Math.exp(log) / n;
    for (let j = 0; j < W.length; j++) W[j] -= factor * G[j];
  },
  momentum: (data, size) => {
    const momentum = new Float64Array(size);
    return (W, G, log, k) => {
      const norm = lengthOf(G);
      for (let j = 0; j < size; j++) {
        const direction = G[j] / norm;
        momentum[j] = (momentum[j] + direction) * (k / (k + 1));
        W[j] -= 2 * (momentum[j] + direction);
      }
    };
  },
  polyak: (data) => (W, G, log) => {
    const norm = lengthOf(G);
    const [excess, scale] = excessOf(data, W);
    const length = Math.exp(Math.min(Math.log(Math.max(excess, 0)) + scale - log - Math.log(norm), Math.log(POLYAK_LONGEST)));
    for (let j = 0; j < W.length; j++) W[j] -= (length * G[j]) / norm;
  },
  mirror: (data, size, W0) => {
    const [p, q] = [MIRROR_POWER, MIRROR_POWER / (MIRROR_POWER - 1)];
    const image = W0.map((entry) => Math.sign(entry) * Math.abs(entry) ** (p - 1));
    return (W, G) => {
      const norm = lengthOf(G);
      const unit = G.map((entry) => entry / norm);
      const total = unit.reduce((sum, entry) => sum + Math.abs(entry) ** q, 0) ** (1 / q) || 1;
      for (let j = 0; j < size; j++) {
        image[j] -= (0.1 * unit[j]) / total;
        W[j] = Math.sign(image[j]) * Math.abs(image[j]) ** (1 / (p - 1));
      }
    };
  },
  sign: () => (W, G) => {
    for (let j = 0; j < W.length; j++) W[j] -= 0.02 * Math.sign(G[j]);
  },
  signum: (data, size) => {
    const mean = scaledMean(size);
    return (W, G, log, k) => {
      mean.update(0.9, 1 - 0.9, G, log - Math.log(data.n));
      for (let j = 0; j < size; j++) W[j] -= (0.2 / Math.sqrt(k + 1)) * Math.sign(mean.mantissa[j]);
    };
  },
  lion: (data, size) => {
    const mean = scaledMean(size);
    return (W, G, log, k) => {
      const [direction] = mean.mixed(0.9, 1 - 0.9, G, log - Math.log(data.n));
      mean.update(0.99, 1 - 0.99, G, log - Math.log(data.n));
      for (let j = 0; j < size; j++) W[j] -= (0.2 / Math.sqrt(k + 1)) * Math.sign(direction[j]);
    };
  },
  adam: (data, size) => {
    const [first, second] = [scaledMean(size), scaledMean(size)];
    return (W, G, log, k) => {
      const mean = log - Math.log(data.n);
      first.update(0.9, 1 - 0.9, G, mean);
      second.update(0.999, 1 - 0.999, G.map((entry) => entry * entry), 2 * mean);
      const correction = Math.sqrt(1 - 0.999 ** (k + 1)) / (1 - 0.9 ** (k + 1));
      const factor = 0.02 * correction * Math.exp(first.log - second.log / 2);
      for (let j = 0; j < size; j++) W[j] -= (factor * first.mantissa[j]) / (Math.sqrt(second.mantissa[j]) || 1);
    };
  },
  muon: (data, size) => {
    const mean = scaledMean(size);
    return (W, G, log, k) => {
      mean.update(0.95, 1 - 0.95, G, log - Math.log(data.n));
      const [direction] = mean.mixed(0.95, 1 - 0.95, G, log - Math.log(data.n));
      const polar = polarFactor(direction, data.d, data.m);
      for (let j = 0; j < size; j++) W[j] -= (0.5 / Math.sqrt(k + 1)) * polar[j];
    };
  },
  spectral: (data) => (W, G) => {
    const polar = polarFactor(G, data.d, data.m);
    for (let j = 0; j < W.length; j++) W[j] -= 0.1 * polar[j];
  },
};

function inRange(array) {
  for (let k = 0; k < array.length; k++) if (!(Math.abs(array[k]) < LARGEST_ENTRY)) return false;
  return true;
}

// Trains W and keeps every step: `path` (steps + 1, d m). `ended` is the step after which numbers overflowed, or null.
// Training stops early where `arrived`, asked now and then, says so.
function trainW(data, optimizer, steps, start, single, arrived = null) {
  const size = data.d * data.m;
  const path = new Float64Array((steps + 1) * size);
  const W = start ? Float64Array.from(start) : new Float64Array(size);
  const grad = single ? new Float32Array(size) : new Float64Array(size);
  const gradient = single ? singleGradient(data) : exactGradient(data);
  const advance = OPTIMIZERS[optimizer](data, size, W);
  if (single) toSingle(W);
  path.set(W);
  for (let k = 0; k < steps; k++) {
    advance(W, grad, gradient(W, grad), k);
    if (single) toSingle(W);
    if (!inRange(W)) return stayed({ path, size, steps, ended: k });
    for (let j = 0; j < size; j++) path[(k + 1) * size + j] = W[j];
    if (arrived && (k + 1) % ASK_EVERY === 0 && arrived(W)) return { path, size, steps: k + 1, ended: null };
  }
  return { path, size, steps, ended: null };
}

function toSingle(array) {
  for (let k = 0; k < array.length; k++) array[k] = Math.fround(array[k]);
}

// A trace whose matrix stays what it was when training ended.
function stayed(trace) {
  for (let step = trace.ended + 1; step <= trace.steps; step++) trace.path.set(matrixAt(trace, trace.ended), step * trace.size);
  return trace;
}

// Trains K and Q by gradient descent, plain or jointly normalised; the path is that of K Q^T.
function trainKQ(data, optimizer, steps, single) {
  const { d, m, n } = data;
  const rank = Math.min(d, m);
  const K = Float64Array.from({ length: d * rank }, (_, k) => 0.1 * KEY_DRAWS[k]);
  const Q = new Float64Array(m * rank);
  const [W, grad] = [new Float64Array(d * m), single ? new Float32Array(d * m) : new Float64Array(d * m)];
  const [gradK, gradQ] = [new Float64Array(K.length), new Float64Array(Q.length)];
  const gradient = single ? singleGradient(data) : exactGradient(data);
  const path = new Float64Array((steps + 1) * W.length);
  const multiply = () => {
    for (let j = 0; j < d; j++) {
      for (let k = 0; k < m; k++) {
        let entry = 0;
        for (let r = 0; r < rank; r++) entry += K[j * rank + r] * Q[k * rank + r];
        W[j * m + k] = entry;
      }
    }
  };
  if (single) toSingle(K);
  for (let step = 1; step <= steps; step++) {
    const log = gradient(W, grad);
    gradK.fill(0);
    gradQ.fill(0);
    for (let j = 0; j < d; j++) {
      for (let k = 0; k < m; k++) {
        for (let r = 0; r < rank; r++) {
          gradK[j * rank + r] += grad[j * m + k] * Q[k * rank + r];
          gradQ[k * rank + r] += grad[j * m + k] * K[j * rank + r];
        }
      }
    }
    const norm = Math.sqrt(squares(gradK) + squares(gradQ)) || 1;
    const size = Math.sqrt(squares(K) + squares(Q));
    const factor = optimizer === "gd" ? Math.exp(log) / n : ((0.5 / Math.sqrt(step)) * size) / norm;
    for (let k = 0; k < K.length; k++) K[k] -= factor * gradK[k];
    for (let k = 0; k < Q.length; k++) Q[k] -= factor * gradQ[k];
    if (single) [K, Q].forEach(toSingle);
    multiply();
    if (!(inRange(K) && inRange(Q) && inRange(W))) return stayed({ path, size: W.length, steps, ended: step - 1 });
    for (let k = 0; k < W.length; k++) path[step * W.length + k] = W[k];
  }
  return { path, size: W.length, steps, ended: null };
}

const matrixAt = (trace, step) => trace.path.subarray(step * trace.size, (step + 1) * trace.size);
