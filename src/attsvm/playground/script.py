"""A Python script of public calls that reproduces the numbers of the page."""

from __future__ import annotations

from attsvm.playground.classes import RACES
from attsvm.playground.plane import factor_optimizer
from attsvm.playground.state import CLASS_COUNT, Classes, Plane

_PLANE = """\
import numpy as np
from attsvm import SelectionProblem, TokenData, correlation, solve, train
{imports}
tokens = np.array({tokens})
queries = np.array({queries})
data = TokenData(tokens, queries, labels=np.array({labels}))
{head}

W = train(data, head, optimizer={optimizer!r}, steps={steps}{init}{numerics})
{factors}"""

_SOLVE_LINES = """\
for name, trace, norm in {runs}:
    selected = {selected}
    solution = solve(SelectionProblem(tokens, queries, selected), norm)
    print(name, "keeps tokens", [int(token) + 1 for token in selected], "of sequences 1, 2, ...")
    print("  loss", float(trace.loss[-1]))
    print("  SVM", solution.status.name, "norm", solution.objective, "gap", solution.gap)
    if np.isfinite(solution.objective):
        print("  correlation", float(correlation(np.asarray(trace.W[-1], dtype=float), solution.W)))
"""

_EQUIVALENT = """\
for name, trace, norm in {runs}:
    W_end = np.asarray(trace.W[-1], dtype=float)
    if not W_end.any():
        print(name, "stays at zero: the head is flat there")
        continue
    logits = np.einsum("ntd,de,ne->nt", tokens, W_end, queries)
    attention = np.exp(logits - logits.max(1, keepdims=True))
    attention /= attention.sum(1, keepdims=True)
    gen_svm = svm_equivalent(data, attention, W_end, norm, masked_below=1e-3)
    print(name, gen_svm.status.name, "keeps", gen_svm.selected.tolist())
    print("  loss", float(trace.loss[-1]))
    if gen_svm.solution is not None:
        print("  SVM", gen_svm.solution.status.name, "norm", gen_svm.solution.objective, "gap", gen_svm.solution.gap)
    print("  correlation", gen_svm.correlation)
"""

_CLASSES = """\
import numpy as np
from attsvm import SelectionProblem, TokenData, correlation, margin_report, solve, train

points = np.array({points})
classes = np.array({classes})
inputs = np.column_stack([points, np.ones(len(points))])
problem = SelectionProblem.from_classes(inputs, classes, classes={count})
tokens = np.broadcast_to(np.eye({count}), (len(points), {count}, {count}))
values = (np.arange({count}) == classes[:, None]).astype(float)[..., None]
data = TokenData(tokens, inputs, np.ones(len(points)), values=values)

for optimizer, norm in {races}:
    trace = train(data, [1.0], loss="correlation", optimizer=optimizer, steps={steps})
    solution = solve(problem, norm)
    print(optimizer, "with the", norm, "norm")
    print("  SVM", solution.status.name, "norm", solution.objective, "gap", solution.gap)
    if np.isfinite(solution.objective):
        print("  correlation", float(correlation(trace.W[-1], solution.W)))
        print("  share of the largest margin", margin_report(trace.W[-1], problem, norms=[norm])[norm].share)
"""


def script(state: Plane | Classes) -> str:
    """Write the script for a state.

    Parameters
    ----------
    state : Plane or Classes

    Returns
    -------
    str
        It prints loss, status, norm, gap and correlation of each run, to all digits.
    """
    return _classes_script(state) if isinstance(state, Classes) else _plane_script(state)


def _plane_script(state: Plane) -> str:
    relu = state.head == "relu"
    numerics = ', numerics="autograd", dtype="float32"' if state.numerics == "float32" else ""
    runs = f'("W", W, {"frobenius" if relu else state.norm!r})'
    init = factors = ""
    if state.start is None:
        options = f'parameterization="KQ", optimizer={factor_optimizer(state)!r}, steps={state.steps}{numerics}'
        factors = f"KQ = train(data, head, {options})\n"
        runs = f'({runs}, ("K Q^T", KQ, "nuclear"))'
    else:
        z = state.queries[0]
        init = f", init=np.outer({state.start.tolist()}, {z.tolist()}) / {float(z @ z)!r}"
        runs = f"({runs},)"
    body = _PLANE.format(
        imports="from attsvm import svm_equivalent\nfrom attsvm.nn.heads import ReLUHead\n" if relu else "",
        tokens=state.tokens.tolist(),
        queries=state.queries.tolist(),
        labels=state.labels.tolist(),
        head=f"head = ReLUHead(np.eye(2), {state.v.tolist()})" if relu else f"head = np.array({state.v.tolist()})",
        optimizer=state.optimizer,
        steps=state.steps,
        init=init,
        numerics=numerics,
        factors=factors,
    )
    if relu:
        return body + _EQUIVALENT.format(runs=runs)
    selected = {"trained": "trace.selected", "best": "np.argmax(data.labels[:, None] * (tokens @ head), axis=1)"}
    keep = selected[state.keep] if isinstance(state.keep, str) else f"np.array({list(state.keep)})"
    return body + _SOLVE_LINES.format(runs=runs, selected=keep)


def _classes_script(state: Classes) -> str:
    return _CLASSES.format(
        points=state.points.tolist(), classes=state.classes.tolist(), count=CLASS_COUNT, races=RACES, steps=state.steps
    )
