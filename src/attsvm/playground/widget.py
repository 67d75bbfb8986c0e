"""The playground in Jupyter, marimo and VS Code: the page's scripts, hosted by anywidget."""

from __future__ import annotations

from typing import Any

import anywidget
import numpy as np
import traitlets

from attsvm.core.problem import SelectionProblem
from attsvm.core.types import AnyNorm
from attsvm.data.token_data import TokenData
from attsvm.playground.frontend import module, presets, style
from attsvm.solution.solution import Solution
from attsvm.solvers.solving import solve

# Largest numbers of sequences and of tokens per sequence on the page.
MOST_SEQUENCES = 3
TOKEN_LIMIT = 8


class Playground(anywidget.AnyWidget):
    """Drag the tokens of a problem and watch training and its SVM.

    The page computes in the browser. Its state is shared with Python, where :attr:`solution` certifies the SVM. An
    assignment to `state` changes the page.

    Parameters
    ----------
    problem : SelectionProblem, optional
        One to three queries, each with two to eight visible tokens in the plane and one selected token. If possible,
        the score direction v gives the selected tokens the best scores. Default: the first preset.
    preset : str, optional
        A name of :func:`attsvm.playground.frontend.presets`, instead of a problem.

    Attributes
    ----------
    state : dict
        The current state of the page: tokens, queries, labels, v and the settings.
    picture : dict
        What the page shows: runs and verdict; empty until a browser displays it.

    Raises
    ------
    ValueError
        If the problem does not fit the page, or the preset is unknown.

    Examples
    --------
    >>> from attsvm import Playground, SelectionProblem
    >>> problem = SelectionProblem([[[1.0, 0.0], [0.0, 0.0], [-1.0, 1.0]]], [[1.0]], [0])
    >>> page = Playground(problem)
    >>> page.state["tokens"]
    [[[1.0, 0.0], [0.0, 0.0], [-1.0, 1.0]]]
    >>> page.solution.status.name
    'OPTIMAL'
    """

    _esm = module()
    _css = style()
    state = traitlets.Dict().tag(sync=True)
    picture = traitlets.Dict().tag(sync=True)
    start = traitlets.Dict().tag(sync=True)
    certified = traitlets.Dict().tag(sync=True)

    def __init__(self, problem: SelectionProblem | None = None, *, preset: str | None = None) -> None:
        names = presets()
        if problem is not None and preset is not None:
            raise ValueError("problem and preset are both given; one of them was expected.")
        if preset is not None and preset not in names:
            raise ValueError(f"preset is {preset!r}; one of {', '.join(map(repr, names))} was expected.")
        name = next(iter(names)) if preset is None else preset
        start: dict[str, Any] = {"name": name}
        state = names[name]["state"]
        if problem is not None:
            state = problem_state(problem)
            about = "The tokens you gave. Drag one, or the arrow v that scores them."
            start = {"name": None, "title": "Your problem", "about": about, "state": state}
        super().__init__(state=state, start=start)

    @property
    def problem(self) -> SelectionProblem:
        """The SVM of the tokens that the page selects, as a problem for :func:`attsvm.solve`."""
        state = self.state
        if state["scene"] == "classes":
            inputs = np.column_stack([state["points"], np.ones(len(state["points"]))])
            return SelectionProblem.from_classes(inputs, np.array(state["classes"]), classes=3)
        return SelectionProblem(np.array(state["tokens"], dtype=float), state["queries"], self._selected())

    @property
    def solution(self) -> Solution:
        """The certified solution of :attr:`problem` in the norm of the page."""
        return solve(self.problem, self._norm)

    @property
    def _norm(self) -> AnyNorm:
        linear = self.state["scene"] == "plane" and self.state["head"] == "linear"
        return self.state["norm"] if linear else "frobenius"

    def _selected(self) -> Any:
        """Return the selected tokens: from the page if it has shown this state, otherwise from training here."""
        state = self.state
        if isinstance(state["keep"], list):
            return np.array(state["keep"])
        tokens, labels, v = (np.array(state[name], dtype=float) for name in ("tokens", "labels", "v"))
        if state["keep"] == "best" and state["head"] == "linear":
            return np.argmax(labels[:, None] * (tokens @ v), axis=1)
        if self.picture.get("state") == state:
            return np.array(self.picture["runs"]["W"]["selected"])
        from attsvm.training import train

        if state["head"] != "linear":
            raise ValueError(
                f"head is {state['head']!r}; a page displayed in a browser was expected, or a linear head."
            )
        steps = state["steps"] if state["step"] is None else state["step"]
        z = np.array(state["queries"][0], dtype=float)
        start = None if state["start"] is None else np.outer(state["start"], z / (z @ z))
        numerics: Any = {} if state["numerics"] == "exact" else {"numerics": "autograd", "dtype": "float32"}
        data = TokenData(tokens, np.array(state["queries"], dtype=float), labels)
        trace = train(data, v, optimizer=state["optimizer"], steps=steps, init=start, **numerics)
        return np.asarray(trace.selected)

    @traitlets.observe("picture")
    def _certify(self, change: Any) -> None:
        if change.new.get("state") == self.state:
            solution = self.solution
            gap = solution.gap if np.isfinite(solution.gap) else None
            self.certified = {"state": self.state, "gap": gap, "sentence": solution.sentence}


def problem_state(problem: SelectionProblem) -> dict[str, Any]:
    """Convert a problem to a state of the page.

    Raises
    ------
    ValueError
        If it has sizes that the page cannot show.
    """
    if not isinstance(problem, SelectionProblem):
        raise ValueError(f"problem has type {type(problem).__name__}; a SelectionProblem was expected.")
    tokens = np.asarray(problem.tokens, dtype=float)[problem.sequence]
    n, T, d = tokens.shape
    if d != 2 or not 1 <= n <= MOST_SEQUENCES or not 2 <= T <= TOKEN_LIMIT:
        raise ValueError(
            f"problem has tokens (n, T, d) = {tokens.shape}; one to {MOST_SEQUENCES} queries, two to {TOKEN_LIMIT} "
            "tokens and d = 2 were expected."
        )
    if problem.has_ties or not problem.mask.all():
        raise ValueError("problem hides tokens or ties several; visible tokens, one selected per query, were expected.")
    if problem.queries.shape[1] > TOKEN_LIMIT:
        raise ValueError(
            f"problem has queries {problem.queries.shape}; rows of at most {TOKEN_LIMIT} numbers were expected."
        )
    common = solve(SelectionProblem(tokens, np.ones((n, 1)), problem.reference))
    consistent = bool(np.isfinite(common.objective)) and common.objective > 0
    v = np.asarray(common.W)[:, 0] / common.objective if consistent else np.array([1.0, 0.0])
    default = next(iter(presets().values()))["state"]
    return default | {
        "tokens": tokens.tolist(),
        "queries": problem.queries.tolist(),
        "labels": [1] * n,
        "v": v.tolist(),
        "keep": "trained" if consistent else problem.reference.tolist(),
    }
