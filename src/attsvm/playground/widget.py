"""The playground in Jupyter, marimo and VS Code: the same module, hosted by anywidget."""

from __future__ import annotations

from typing import Any

import anywidget
import numpy as np
import traitlets

from attsvm.core.problem import SelectionProblem
from attsvm.playground.frontend import module, style
from attsvm.playground.picture import answer
from attsvm.playground.plane import PageMemory
from attsvm.playground.presets import PRESETS, plane_state
from attsvm.playground.state import MOST_SEQUENCES, TOKEN_LIMIT, read_state
from attsvm.solvers.solving import solve


class Playground(anywidget.AnyWidget):
    """Drag the tokens of a problem and watch training and its SVM.

    Parameters
    ----------
    problem : SelectionProblem, optional
        One to three queries, each with two to eight visible tokens in the plane and one selected token. If possible,
        the score direction v gives the selected tokens the best scores. Default: the first preset.
    preset : str, optional
        A name of :data:`attsvm.playground.presets.PRESETS`, instead of a problem.

    Attributes
    ----------
    state : dict
        The current state of the page: tokens, queries, labels, v and the settings.
    picture : dict
        The last answer: runs, verdict, and a script that prints the same numbers.

    Raises
    ------
    ValueError
        If the problem does not fit the page, or the preset is unknown.

    Examples
    --------
    >>> from attsvm import Playground, SelectionProblem
    >>> problem = SelectionProblem([[[1.0, 0.0], [0.0, 0.0], [-1.0, 1.0]]], [[1.0]], [0])
    >>> Playground(problem).state["tokens"]
    [[[1.0, 0.0], [0.0, 0.0], [-1.0, 1.0]]]
    """

    _esm = module()
    _css = style()
    request = traitlets.Any(None).tag(sync=True)
    answer = traitlets.Any(None).tag(sync=True)
    initial = traitlets.Any(None).tag(sync=True)
    notice = traitlets.Unicode("").tag(sync=True)
    addressed = traitlets.Bool(False).tag(sync=True)

    def __init__(self, problem: SelectionProblem | None = None, *, preset: str | None = None) -> None:
        if problem is not None and preset is not None:
            raise ValueError("problem and preset are both given; one of them was expected.")
        if preset is not None and preset not in PRESETS:
            raise ValueError(f"preset is {preset!r}; one of {', '.join(map(repr, PRESETS))} was expected.")
        initial: dict[str, Any] | None = None
        if problem is not None:
            about = "The tokens you gave. Drag one, or the arrow v that scores them."
            initial = {"name": None, "title": "Your problem", "about": about, "state": problem_state(problem)}
        name = preset or next(iter(PRESETS))
        self._first = PRESETS[name]["state"] if initial is None else initial["state"]
        if preset is not None:
            initial = {"name": name, "title": PRESETS[name]["title"], "state": self._first}
        self._memory = PageMemory()
        super().__init__(initial=initial)

    @property
    def state(self) -> dict[str, Any]:
        """The current state of the page."""
        return self._first if self.request is None else self.request["state"]

    @property
    def picture(self) -> dict[str, Any]:
        """The last answer, computed if the page has not requested one yet."""
        if self.answer is None:
            return answer({"state": self.state}, PageMemory())
        return self.answer

    @traitlets.observe("request")
    def _respond(self, change: Any) -> None:
        if change.new is not None:
            self.answer = answer(change.new, self._memory)


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
        raise ValueError("problem hides tokens or ties several; visible ones, one of them selected, were expected.")
    common = solve(SelectionProblem(tokens, np.ones((n, 1)), problem.reference))
    consistent = bool(np.isfinite(common.objective)) and common.objective > 0
    v = np.asarray(common.W)[:, 0] / common.objective if consistent else np.array([1.0, 0.0])
    keep = "trained" if consistent else problem.reference.tolist()
    state = plane_state(tokens.tolist(), problem.queries.tolist(), v.tolist(), keep=keep)
    read_state(state)
    return state
