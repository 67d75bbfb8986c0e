"""Initial states of the page."""

from __future__ import annotations

from typing import Any

import numpy as np

# The instances of Fig. 1 of arXiv 2308.16898, to three digits, drawn as in the official notebooks
# (attsvm_paper.figures.gd_paths draws them too).
_THREE_TOKENS = {
    "tokens": [
        [[-0.981, 0.186], [-1.136, -0.05], [-1.457, 0.115]],
        [[0.692, -0.169], [0.732, -0.017], [0.941, -0.29]],
    ],
    "queries": [[0.845, 0.535], [-0.636, -0.771]],
    "v": [0.927, 0.374],
}
_FIVE_TOKENS = {
    "tokens": [
        [[1.0, 0.5], [-0.19, -0.798], [-0.798, 0.306], [-0.62, -0.017], [-1.172, 0.247]],
        [[1.0, -0.5], [-0.757, 0.103], [-0.831, 0.676], [-0.813, 0.007], [-0.613, -0.055]],
    ],
    "queries": [[-0.539, -0.842], [0.953, 0.304]],
    "v": [0.977, 0.213],
}


def plane_state(tokens: Any, queries: Any, v: Any, **settings: Any) -> dict[str, Any]:
    """Return a state of the page: the given data, and default settings unless others are given."""
    return {
        "scene": "plane",
        "tokens": tokens,
        "queries": queries,
        "labels": [1] * len(tokens),
        "v": v,
        "head": "linear",
        "optimizer": "normalized_gd",
        "norm": "frobenius",
        "steps": 2000,
        "numerics": "exact",
        "keep": "trained",
        "start": None,
        "basins": False,
        **settings,
    }


def _points() -> dict[str, Any]:
    """Draw three clouds of six points."""
    centres = np.array([[2.0, 0.0], [-1.2, 1.8], [-1.2, -1.8]])
    classes = np.repeat([0, 1, 2], 6)
    points = centres[classes] + 0.5 * np.random.default_rng(0).normal(size=(18, 2))
    return {"scene": "classes", "points": points.round(2).tolist(), "classes": classes.tolist(), "steps": 1000}


PRESETS: dict[str, dict[str, Any]] = {
    "five-tokens": {
        "title": "Two sequences of five tokens (Fig. 1)",
        "about": "Gradient descent on W and on K, Q turns into the max-margin rays. Drag a token, or the arrow v.",
        "state": plane_state(**_FIVE_TOKENS),
    },
    "three-tokens": {
        "title": "Two sequences of three tokens (Fig. 1)",
        "about": "The first picture of the paper. Tokens of a sequence lie close together, so the margin asks for a "
        "long W.",
        "state": plane_state(**_THREE_TOKENS),
    },
    "counterexample": {
        "title": "A counterexample to global convergence",
        "about": "Painted: where training goes from each start W(0) z. Drag the start across the border.",
        "state": plane_state(
            [[[1.0, 0.0], [0.0, 0.0]], [[-2.0, 1.0], [0.0, 0.0]]],
            [[1.0, 0.0], [1.0, 0.0]],
            [1.0, 3.5],
            start=[4.0, 0.0],
            basins=True,
        ),
    },
    "infeasible": {
        "title": "Infeasible: a token inside the hull",
        "about": "Token 1 of sequence 1 is to be kept and lies inside the hull of the others. Drag it out.",
        "state": plane_state(
            [
                [[-0.1, -0.1], [1.0, -0.7], [-0.7, 0.8], [-0.6, -0.9]],
                [[0.9, 0.8], [-0.2, 0.9], [0.3, -0.6], [-0.9, 0.1]],
            ],
            [[1.0, 0.0], [0.0, 1.0]],
            [0.5, 0.5],
            keep=[0, 0],
        ),
    },
    "composition": {
        "title": "Composition with a ReLU head",
        "about": "Under h(x) = v · ReLU(x) and label −1 two tokens together lose less than either alone.",
        "state": plane_state(
            [[[1.6, -0.8], [-0.8, 1.6], [1.4, 1.4]], [[1.2, 0.9], [-0.5, 1.2], [0.2, -1.0]]],
            [[1.0, 0.2], [-0.2, 1.0]],
            [1.0, 1.0],
            labels=[-1, 1],
            head="relu",
            steps=200,
        ),
    },
    "classes": {
        "title": "Three classes, three optimisers",
        "about": "One data set, three directions: each optimiser finds the largest margin of its own norm.",
        "state": _points(),
    },
    "float32": {
        "title": "Plain float32 loses the direction",
        "about": "Softmax saturates and its gradient is rounded to zero. Exact gradients go on to the ray.",
        "state": plane_state(**_FIVE_TOKENS, numerics="float32"),
    },
}
