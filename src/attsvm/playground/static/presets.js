const PRESETS = {
  "turn": {
    "title": "Watch W turn",
    "about": "W sets out along the scores, a quarter turn from the max-margin direction, and turns into it. Press play.",
    "state": { "scene": "plane", "tokens": [[[1.19, -0.01], [-0.56, 0.34], [-0.86, -0.53], [0.32, 0.88]], [[0.31, -0.31], [0.77, 1.1], [-0.26, -0.59], [0.05, -1.17]]], "queries": [[0.91, 0.41], [-0.82, 0.58]],
      "labels": [1, 1], "v": [-0.99, 0.13], "head": "linear", "optimizer": "normalized_gd", "norm": "frobenius", "steps": 2000, "numerics": "exact", "keep": "best", "start": null, "basins": false, "step": null }
  },
  "five-tokens": {
    "title": "Two sequences of five tokens (Fig. 1)",
    "about": "Gradient descent on W and on K, Q turns into the max-margin rays. Drag a token, or the arrow v.",
    "state": { "scene": "plane", "tokens": [[[1.0, 0.5], [-0.19, -0.798], [-0.798, 0.306], [-0.62, -0.017], [-1.172, 0.247]], [[1.0, -0.5], [-0.757, 0.103], [-0.831, 0.676], [-0.813, 0.007], [-0.613, -0.055]]], "queries": [[-0.539, -0.842], [0.953, 0.304]],
      "labels": [1, 1], "v": [0.977, 0.213], "head": "linear", "optimizer": "normalized_gd", "norm": "frobenius", "steps": 2000, "numerics": "exact", "keep": "trained", "start": null, "basins": false, "step": null }
  },
  "three-tokens": {
    "title": "Two sequences of three tokens (Fig. 1)",
    "about": "The first picture of the paper. Tokens of a sequence lie close together, so the margin asks for a long W.",
    "state": { "scene": "plane", "tokens": [[[-0.981, 0.186], [-1.136, -0.05], [-1.457, 0.115]], [[0.692, -0.169], [0.732, -0.017], [0.941, -0.29]]], "queries": [[0.845, 0.535], [-0.636, -0.771]],
      "labels": [1, 1], "v": [0.927, 0.374], "head": "linear", "optimizer": "normalized_gd", "norm": "frobenius", "steps": 2000, "numerics": "exact", "keep": "trained", "start": null, "basins": false, "step": null }
  },
  "counterexample": {
    "title": "A counterexample to global convergence",
    "about": "Painted: where training goes from each start W(0) z. Drag the start across the border.",
    "state": { "scene": "plane", "tokens": [[[2.75, -0.5], [1.75, -0.5]], [[-2.0, 1.0], [0.0, 0.0]]], "queries": [[0.6, -0.8], [0.6, -0.8]],
      "labels": [1, 1], "v": [1.0, 3.5], "head": "linear", "optimizer": "normalized_gd", "norm": "frobenius", "steps": 2000, "numerics": "exact", "keep": "trained", "start": [4.0, 0.0], "basins": true, "step": null }
  },
  "infeasible": {
    "title": "Infeasible: a token inside the hull",
    "about": "Token 1 of sequence 1 is to be selected and lies inside the hull of the others. Drag it out.",
    "state": { "scene": "plane", "tokens": [[[-0.1, -0.1], [1.0, -0.7], [-0.7, 0.8], [-0.6, -0.9]], [[0.9, 0.8], [-0.2, 0.9], [0.3, -0.6], [-0.9, 0.1]]], "queries": [[1.0, 0.0], [0.0, 1.0]],
      "labels": [1, 1], "v": [0.5, 0.5], "head": "linear", "optimizer": "normalized_gd", "norm": "frobenius", "steps": 2000, "numerics": "exact", "keep": [0, 0], "start": null, "basins": false, "step": null }
  },
  "composition": {
    "title": "Composition with a ReLU head",
    "about": "Under h(x) = v · ReLU(x) and label −1 two tokens together lose less than either alone.",
    "state": { "scene": "plane", "tokens": [[[1.6, -0.8], [-0.8, 1.6], [1.4, 1.4]], [[1.2, 0.9], [-0.5, 1.2], [0.2, -1.0]]], "queries": [[1.0, 0.2], [-0.2, 1.0]],
      "labels": [-1, 1], "v": [1.0, 1.0], "head": "relu", "optimizer": "normalized_gd", "norm": "frobenius", "steps": 200, "numerics": "exact", "keep": "trained", "start": null, "basins": false, "step": null }
  },
  "classes": {
    "title": "Three classes, three optimisers",
    "about": "One data set, three directions: each optimiser finds the largest margin of its own norm.",
    "state": { "scene": "classes", "points": [[2.06, -0.07], [2.38, 0.1], [1.73, 0.18], [2.65, 0.47], [1.65, -0.63], [-2.36, 1.69], [-1.82, 1.43], [-1.47, 1.64], [-0.99, 2.32], [-1.32, 2.5], [-1.53, 1.98], [-0.62, -1.9], [-1.57, -2.26], [-1.5, -1.85], [-1.9, -1.75], [-1.28, -1.5], [-1.0, -1.7]], "classes": [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2],
      "steps": 300, "step": null }
  },
  "float32": {
    "title": "Plain float32 loses the direction",
    "about": "Softmax saturates and its gradient is rounded to zero. Exact gradients go on to the ray.",
    "state": { "scene": "plane", "tokens": [[[1.0, 0.5], [-0.19, -0.798], [-0.798, 0.306], [-0.62, -0.017], [-1.172, 0.247]], [[1.0, -0.5], [-0.757, 0.103], [-0.831, 0.676], [-0.813, 0.007], [-0.613, -0.055]]], "queries": [[-0.539, -0.842], [0.953, 0.304]],
      "labels": [1, 1], "v": [0.977, 0.213], "head": "linear", "optimizer": "normalized_gd", "norm": "frobenius", "steps": 1000, "numerics": "float32", "keep": "trained", "start": null, "basins": false, "step": null }
  }
};
