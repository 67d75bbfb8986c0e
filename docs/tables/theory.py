"""Measure the numbers of theory.md and write them to theory.inc in this folder; about three minutes.

python docs/tables/theory.py
"""

from pathlib import Path

import numpy as np

from attsvm import Status, TokenData, theory, train
from attsvm.data.synthetic import random_data
from attsvm.theory.conditions import initial_gradient
from attsvm_paper.judging.statistics import wilson_interval

GAP = 0.1
HYPOTHESES = {"dimensions": (5, 10, 20, 40), "trials": 300, "n": 5, "T": 5, "seed": 20}
SEPARABILITY = {"dimensions": (2, 3, 4, 5), "trials": 300, "n": 5, "T": 5, "seed": 22}
PREDICTIONS = {"dimensions": (2, 4, 8, 16), "trials": 80, "n": 3, "T": 4, "seed": 21, "steps": 3000}


def share(count: int, total: int) -> str:
    low, high = wilson_interval(count, total)
    return f"{100 * count / total:.0f} % ({100 * low:.0f} to {100 * high:.0f})"


def hypotheses() -> list[str]:
    """How often strict B.1, slack B.1 and C hold."""
    trials, n, T = (HYPOTHESES[name] for name in ("trials", "n", "T"))
    lines = [
        f"Share of {trials} random instances per row in which each hypothesis holds, with 95 % intervals (n = {n}, "
        f"T = {T}, score gap {GAP}):",
        "",
        "| d | strict B.1 | slack B.1 | C |",
        "|---:|---:|---:|---:|",
    ]
    for d in HYPOTHESES["dimensions"]:
        data, v = random_data(trials, n, T, d, gap=GAP, seed=HYPOTHESES["seed"])
        counts = np.zeros(3, dtype=int)
        for j in range(trials):
            trial = theory.Trial.of(data[j], v[j])
            counts += [bool(c.holds) for c in (*theory.condition_b1(trial), theory.condition_c(trial))]
        lines.append(f"| {d} | {' | '.join(share(int(count), trials) for count in counts)} |")
    return lines


def separability() -> list[str]:
    """How often the optimal tokens have an SVM where the sufficient condition does not hold."""
    trials, n, T = (SEPARABILITY[name] for name in ("trials", "n", "T"))
    shares = []
    for d in SEPARABILITY["dimensions"]:
        data, v = random_data(trials, n, T, d, seed=SEPARABILITY["seed"])
        statuses = [theory.Trial.of(data[j], v[j]).optimal_solution.status for j in range(trials)]
        shares.append(f"{share(sum(status is Status.OPTIMAL for status in statuses), trials)} at d = {d}")
    return [
        f"The condition is sufficient, not necessary. The share of {trials} random instances (n = {n}, T = {T}, no "
        f"score gap) whose optimal tokens have an SVM is {', '.join(shares)} (95 % intervals)."
    ]


def predictions() -> list[str]:
    """The outcome expected from zero, and where normalised descent ended."""
    trials, n, T = (PREDICTIONS[name] for name in ("trials", "n", "T"))
    counts = dict.fromkeys(("all", "expected", "reached", "late", "C", "C reached", "not local", "unsettled"), 0)
    for d in PREDICTIONS["dimensions"]:
        data, v = random_data(trials, n, T, d, gap=GAP, seed=PREDICTIONS["seed"])
        W = train(data, v, steps=PREDICTIONS["steps"]).W[:, -1]
        for j in range(trials):
            trial = theory.Trial.of(data[j], v[j])
            prediction = theory.predict(trial, landscape=theory.explore(trial))
            outcome = theory.observe(trial, W[j]).outcome
            is_global = outcome is theory.Outcome.GLOBAL
            expected = prediction.expected is theory.Outcome.GLOBAL
            start = bool(prediction.hypotheses["C"].holds)
            for name, event in (
                ("all", True),
                ("expected", expected),
                ("reached", expected and is_global),
                ("late", expected and outcome is theory.Outcome.SHARED),
                ("C", start),
                ("C reached", start and is_global),
                ("not local", outcome is theory.Outcome.NOT_LOCAL),
                ("unsettled", outcome is theory.Outcome.SHARED),
            ):
                counts[name] += event
    return [
        f"{counts['all']} random instances were trained with {PREDICTIONS['steps']} normalised steps from zero "
        f"(n = {n}, T = {T}, d = {', '.join(map(str, PREDICTIONS['dimensions']))}, score gap {GAP}). The global "
        f"direction was expected in {counts['expected']} of them. {counts['reached']} of these reached it, and "
        f"{counts['late']} still shared attention. C held in {counts['C']}, and {counts['C reached']} of these reached "
        f"the global direction. {counts['not local']} of all instances ended on tokens that are not locally optimal, "
        f"and {counts['unsettled']} still shared attention.",
    ]


def constant_of_k() -> list[str]:
    """The instance in which the printed L_K is too small."""
    trial, scale = theory.Trial.of(*random_data(None, 3, 4, 4, seed=1)), 1e4
    Q = scale * np.eye(4)
    bound = theory.smoothness(trial, K=np.zeros((4, 4)), Q=Q)
    step = np.random.default_rng(1).standard_normal((4, 4)) * 1e-4 / scale
    change = (initial_gradient(trial, W=step @ Q.T) - initial_gradient(trial, W=-step @ Q.T)) @ Q
    return [
        f"At K = 0 and Q = 10⁴ I (n = 3, T = 4, d = 4) finite differences of the gradient in K show "
        f"{np.linalg.norm(change) / np.linalg.norm(2 * step):.2g}. The printed bound is ‖Q‖ L_W = "
        f"{scale * bound.L_W:.2g}, the corrected one ‖Q‖² L_W = {bound.L_K:.2g}.",
    ]


def looseness() -> list[str]:
    """L_W against the largest change of the gradient seen."""
    ratios, rng = [], np.random.default_rng(3)
    for seed in range(200):
        trial = theory.Trial.of(*random_data(None, 5, 5, 5, seed=seed))
        steps = [(rng.standard_normal((5, 5)) * a, rng.standard_normal((5, 5)) * 1e-3) for a in (0, 1, 3) * 10]
        changes = [
            np.linalg.norm(initial_gradient(trial, W=W + H) - initial_gradient(trial, W=W)) / np.linalg.norm(H)
            for W, H in steps
        ]
        ratios.append(theory.smoothness(trial).L_W / max(changes))
    low, middle, high = np.quantile(ratios, (0.0, 0.5, 1.0))
    return [
        f"L_W is {middle:.0f} times the largest of 30 measured Lipschitz quotients in the median of 200 random "
        f"instances with n = T = d = 5 ({low:.0f} to {high:.0f} times)."
    ]


def cones() -> list[str]:
    """Constants of both directions of the counterexample."""
    tokens = np.array([[[1.0, 0.0], [0.0, 0.0]], [[-2.0, 1.0], [0.0, 0.0]]])
    trial = theory.Trial.of(TokenData(tokens, np.array([[1.0, 0.0], [1.0, 0.0]]), np.ones(2)), [1.0, 3.5])
    lines = ["| counterexample, direction | μ | R of Lemma 13 | radius proved |", "|---|---:|---:|---:|"]
    for name, selected in (("local, (1, 0)", (0, 1)), ("global, (1, 3)", (0, 0))):
        constants = theory.local_constants(trial, theory.local_optimality(trial, selected))
        lines.append(f"| {name} | {constants.mu:.2g} | {constants.R:.3g} | {constants.radius:.3g} |")
    return lines


def main() -> None:
    parts = {
        "hypotheses": hypotheses,
        "separability": separability,
        "predictions": predictions,
        "constant-of-k": constant_of_k,
        "looseness": looseness,
        "cones": cones,
    }
    lines = []
    for name, make in parts.items():
        lines += [f"<!-- {name} -->", "", *make(), "", f"<!-- end {name} -->", ""]
    print("\n".join(lines))
    Path(__file__).with_suffix(".inc").write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
