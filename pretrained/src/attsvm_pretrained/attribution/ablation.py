r"""Test in the model whether the top token flips if a component is scaled by the factor that an attribution predicts.

A component that contributes :math:`e_t` to the logit of token t contributes :math:`s\,e_t` when scaled by s. The logits
of the chosen token j and of token t are then equal at :math:`s = 1 - (a_j - a_t) / (e_j - e_t)`. The model runs with
this change of the hidden state that the head projects, at the query or at the two keys, for this head alone. The
prediction is exact if the norm before the projection is frozen. If the norm is live, its denominator changes, and the
test measures how well the prediction still holds. Two controls are tested in the same way:

* *gradient*: gradient times input, e from the derivative of the live norm. It predicts small changes under a live norm
  better, since it includes the first change of the denominator;
* *random*: the e of another component, drawn at random.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from attsvm.platform.extras import frame
from attsvm.platform.summary import Worded, counted
from attsvm_pretrained.activations.image import Side, holding, rereading
from attsvm_pretrained.activations.recording import AttentionCall, Enough, recording
from attsvm_pretrained.activations.residual import Component
from attsvm_pretrained.activations.tracing import tracing
from attsvm_pretrained.attribution.readings import Source, VectorReading

Norms = Literal["frozen", "live"]
RANKINGS = ("attribution", "gradient", "random")
# Number of copies of the text per forward pass.
BATCH = 32


@dataclass(frozen=True, eq=False, repr=False)
class AttributionCheck(Worded):
    """The result of predicted flips in the model.

    Attributes
    ----------
    side : {"query", "keys"}
        Side of the head on which components were scaled.
    components : tuple of Component
    tolerance : float
    factors : dict of str to ndarray, shape (C,)
        Factors predicted by "attribution", "gradient" and "random"; infinite without a predicted flip.
    flipped : dict of str to dict of str to ndarray of bool, shape (C,)
        By state of the norms ("frozen" or "live") and method: whether the chosen token was on top at the predicted
        change minus the tolerance, but not at the predicted change plus the tolerance.
    left : dict of str to dict of str to ndarray, shape (C,)
        Lead of the chosen token at the predicted change, over its lead without a change; 1 without a prediction.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> model, inputs = pretrained.example_model("gpt2")
    >>> split = pretrained.attribute(model, 1, 0, inputs)
    >>> check = split.check(most=4)
    >>> check.flipped["frozen"]["attribution"].all()
    np.True_
    """

    side: Side
    components: tuple[Component, ...]
    tolerance: float
    factors: dict[str, np.ndarray]
    flipped: dict[str, dict[str, np.ndarray]]
    left: dict[str, dict[str, np.ndarray]]

    @property
    def sentence(self) -> str:
        """State the result in two sentences."""
        shares = {
            norms: ", ".join(f"{name} {100 * of_method[name].mean():.0f} %" for name in RANKINGS)
            for norms, of_method in self.flipped.items()
        }
        components = counted(len(self.components), "component")
        return (
            f"With norms live the top token flips within {100 * self.tolerance:.0f} % of the predicted change of "
            f"{components} of the {self.side}: {shares['live']}. With norms frozen, where the attribution is an "
            f"identity: {shares['frozen']}."
        )

    def to_frame(self) -> Any:
        """List predictions: one row per component, method and state of the norms.

        Returns
        -------
        pandas.DataFrame
            Columns name, method, norms, factor, flipped and left.

        Raises
        ------
        ImportError
            Without pandas.

        Examples
        --------
        >>> from attsvm import pretrained
        >>> model, inputs = pretrained.example_model("gpt2")
        >>> margin = pretrained.attribute(model, 1, 0, inputs)
        >>> list(margin.check(most=4).to_frame().columns)
        ['name', 'method', 'norms', 'factor', 'flipped', 'left']
        """
        rows = [
            (component.name, method, norms, self.factors[method][c], of[method][c], self.left[norms][method][c])
            for norms, of in self.flipped.items()
            for method in RANKINGS
            for c, component in enumerate(self.components)
        ]
        names = ("name", "method", "norms", "factor", "flipped", "left")
        return frame("AttributionCheck.to_frame", dict(zip(names, zip(*rows, strict=True), strict=True)))


def flips(scores: np.ndarray, effect: np.ndarray, choice: int) -> tuple[float, int]:
    """Find the factor nearest to 1 that, applied to a part `effect` of the scores, lets another token reach the chosen.

    Parameters
    ----------
    scores, effect : ndarray, shape (T,)

    Returns
    -------
    factor : float
        Infinite if there is none.
    token : int
        The other token; -1 if there is none.
    """
    relative, lead = effect[choice] - effect, scores[choice] - scores
    possible = np.isfinite(scores) & (relative != 0)
    if not possible.any():
        return np.inf, -1
    change = np.full(len(scores), np.inf)
    change[possible] = -lead[possible] / relative[possible]
    t = int(np.abs(change).argmin())
    return 1.0 + float(change[t]), t


def check(
    source: Source, scores: np.ndarray, chosen: int, components: Sequence[Component], side: Side, *, tolerance: float
) -> AttributionCheck:
    """Run the model with each component scaled as predicted; users call :meth:`Attribution.check`."""
    readings = [source.query] if side == "query" else [source.chosen, source.rival]
    parts = [ComponentChange(reading, components, source.model) for reading in readings]
    effects = {
        "attribution": source.effects([one.vectors for one in parts], side),
        "gradient": source.effects([one.derivatives for one in parts], side, live=True),
    }
    effects["random"] = np.roll(effects["attribution"], 1, axis=0)  # effects of other components
    factors = {
        name: np.array([flips(scores, effect, chosen)[0] for effect in of_method])
        for name, of_method in effects.items()
    }
    flip_counts: dict[str, dict[str, np.ndarray]] = {"frozen": {}, "live": {}}
    remainders: dict[str, dict[str, np.ndarray]] = {"frozen": {}, "live": {}}
    others = np.delete(np.arange(len(scores)), chosen)
    lead = scores[chosen] - scores[others].max()
    for norms in ("frozen", "live"):
        for method, values in factors.items():
            change = np.where(np.isfinite(values), values - 1.0, 0.0)
            ahead = []
            for size in (1.0 - tolerance, 1.0, 1.0 + tolerance):
                outcome = logits_with(source, parts, size * change, side, norms)
                ahead.append(outcome[:, chosen] - outcome[:, others].max(axis=1))
            before, level, after = ahead
            flip_counts[norms][method] = np.isfinite(values) & (before > 0) & (after < 0)
            remainders[norms][method] = np.where(np.isfinite(values), np.abs(level) / lead, 1.0)
    return AttributionCheck(side, tuple(components), tolerance, factors, flip_counts, remainders)


class ComponentChange:
    """Components of the hidden state that a head reads, and the changes of the state if they grow."""

    def __init__(self, reading: VectorReading, components: Sequence[Component], model: Any) -> None:
        self.reading = reading
        self.vectors = reading.vectors(components)  # (C, d)
        self.before = [
            reading.parts[one].before if one in reading.parts and reading.norm is not None else None
            for one in components
        ]
        self.derivatives = self.vectors.copy()
        self.norm: Any = None
        if reading.norm is None:
            return
        path, state = reading.norm
        self.norm = copy.deepcopy(model.get_submodule(path)).double()
        point = torch.from_numpy(state).to(next(model.parameters()).device)
        jacobian = torch.autograd.functional.jacobian(lambda one: self.norm(one[None])[0], point).cpu().numpy()
        for c, before in enumerate(self.before):
            if before is not None:
                self.derivatives[c, : len(before)] = jacobian @ before

    def changes(self, sizes: np.ndarray, norms: Norms) -> np.ndarray:
        """Return the changes of the state if each component alone grows by its size, (C, d)."""
        out = sizes[:, None] * self.vectors
        if norms == "frozen" or self.reading.norm is None:
            return out
        state = self.reading.norm[1]
        for c, before in enumerate(self.before):
            if before is not None:
                rows = torch.from_numpy(np.stack([state, state + sizes[c] * before]))
                with torch.no_grad():
                    old, new = self.norm(rows.to(next(self.norm.parameters(), rows).device)).cpu().numpy()
                out[c, : len(before)] = new - old
        return out


def logits_with(
    source: Source, parts: Sequence[ComponentChange], sizes: np.ndarray, side: Side, norms: Norms
) -> np.ndarray:
    """Return the model's logits if each component alone grows by its size, (C, T)."""
    changes = [one.changes(sizes, norms) for one in parts]
    out = []
    for start in range(0, len(sizes), BATCH):
        chunk = slice(start, start + BATCH)
        rows = {
            source.question.own_row(side, one.reading.row): of[chunk] for one, of in zip(parts, changes, strict=True)
        }
        out.append(_logits_after(source, rows, side, norms))
    return np.concatenate(out)[:, source.places]


def _logits_after(source: Source, changes: Mapping[int, np.ndarray], side: Side, norms: Norms) -> np.ndarray:
    """Add vectors (R, d) to the head's states at some rows of R copies of the text; return the logits (R, T)."""
    question, origin = source.question, source.origins[side]
    count, d = len(next(iter(changes.values()))), origin.states.shape[-1]

    def change(states: torch.Tensor) -> torch.Tensor:
        states = states.clone()
        for row, vectors in changes.items():
            if row >= 0:  # a null token has no state
                states[:, row] += torch.from_numpy(vectors[:, :d]).to(states)
        return states

    copies, texts = [question.sequence] * count, len(question.head.tokens)
    inputs = {
        name: value[copies] if isinstance(value, torch.Tensor) and len(value) == texts else value
        for name, value in source.inputs.items()
    }
    denominators = {
        module: {n: values[copies] for n, values in calls.items()}
        for module, calls in (origin.norms if norms == "frozen" else {}).items()
    }
    call = _call(source, inputs, lambda: (rereading(origin.readers, change), holding(denominators)))
    if side == "query":  # the tokens' keys, including the key of the query's token, do not change
        return np.array([question.logits(question.query(call, r), source.keys) for r in range(count)])
    keys = np.array([source.keys] * count)
    for reading in source.readings(side):
        for r in range(count):
            keys[r, reading.row] = question.keys(call, r)[reading.row]
    query = question.query(question.call, question.sequence)
    return np.array([question.logits(query, of_copy) for of_copy in keys])


def _call(
    source: Source, inputs: dict[str, Any], alterations: Callable[[], Sequence[AbstractContextManager[None]]]
) -> AttentionCall:
    """Run the model up to the attention of the head's layer; alterations are made per pass, as they count its calls."""
    index, calls = source.question.call.index, []
    for way in (recording, tracing):
        with ExitStack() as stack:
            recorder = stack.enter_context(way(source.model, lambda number, path: number == index))
            recorder.until, calls = index, recorder.calls
            for alteration in (*alterations(), torch.no_grad(), suppress(Enough)):
                stack.enter_context(alteration)
            source.model(**inputs)
        if calls:
            break
    return calls[0]
