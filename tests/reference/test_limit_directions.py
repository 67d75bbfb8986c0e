"""Where each optimiser goes: to the max-margin solution in the norm it is steepest in.

The measure is the normalised margin rho = (min margin(W) / ||W||) / (1 / ||W_mm||) <= 1, which is right even where the
solution is not unique. After training to smallest margin m the softmax still weighs N = n T constraints, with scores
that differ by a factor Gamma, instead of the smallest alone: steepest descent with small steps guarantees
1 - rho <= (log(N Gamma) + 1) / m (the soft minimum bound of Gunasekar et al. 2018, arXiv 1802.08246; 1 for the steps
taken before selection settles). In the Frobenius norm the correlation with W_mm is at least rho.

Rates are exponents of the error between two records, one a seed; they are compared with what the theory or a model says
by the standard error of their mean over seeds. For the max and the spectral norm nothing is proved for attention: those
two rows are experiments.
"""

import cvxpy as cp
import numpy as np
import pytest

from attsvm import SelectionProblem, correlation, solve, train
from attsvm.data.synthetic import random_data
from attsvm.training.optimisers.descent import NormalizedGD
from attsvm.training.optimisers.steepest import MirrorDescent, SignDescent, SpectralDescent

SEEDS, N, T, D = 20, 6, 8, 10
DATA, V = random_data(SEEDS, N, T, D, gap=0.1, seed=0)
GAMMA = 2 / 0.1  # scores lie in [-1, 1] and differ by at least the gap

NORMS = {
    "frobenius": lambda W: np.linalg.norm(W, axis=(-2, -1)),
    "nuclear": lambda W: np.linalg.norm(W, "nuc", axis=(-2, -1)),
    "spectral": lambda W: np.linalg.norm(W, 2, axis=(-2, -1)),
    "max": lambda W: np.abs(W).max((-2, -1)),
    1.75: lambda W: (np.abs(W) ** 1.75).sum((-2, -1)) ** (1 / 1.75),
    3: lambda W: (np.abs(W) ** 3).sum((-2, -1)) ** (1 / 3),
}


def smallest_margin(W, selected):
    """Smallest margin of the selected tokens, one number a trial."""
    logits = np.einsum("bntd,bde,bne->bnt", DATA.tokens, W, DATA.queries)
    margins = np.take_along_axis(logits, selected[..., None], -1) - logits
    np.put_along_axis(margins, selected[..., None], np.inf, -1)
    return margins.min((-2, -1))


def smallest_norm(trial, selected, norm):
    """Smallest norm that selects with margin one."""
    if norm in ("frobenius", "nuclear"):
        return solve(SelectionProblem(DATA.tokens[trial], DATA.queries[trial], selected), norm).objective
    W = cp.Variable((D, D))
    constraints = [
        (DATA.tokens[trial, i, a] - np.delete(DATA.tokens[trial, i], a, 0)) @ W @ DATA.queries[trial, i] >= 1
        for i, a in enumerate(selected)
    ]
    flat = cp.vec(W, order="C")
    measure = {"spectral": cp.norm(W, 2), "max": cp.norm(flat, "inf")}.get(norm)
    if measure is None:
        measure = cp.pnorm(flat, norm)
    return cp.Problem(cp.Minimize(measure), constraints).solve(solver=cp.CLARABEL)


def shortfall(trace, norm):
    """Return 1 - rho and the margin reached at each record, shape (records, trials)."""
    optimum = np.array([smallest_norm(j, trace.selected[j], norm) for j in range(SEEDS)])
    margin = np.stack([smallest_margin(trace.W[:, r], trace.selected) for r in range(1, len(trace.step))])
    size = np.stack([NORMS[norm](trace.W[:, r]) for r in range(1, len(trace.step))])
    return 1 - margin * optimum / size, margin


def exponents(trace, reference):
    """Rate p of errors like k^-p between the last two records: mean over seeds, its standard error, the last errors."""
    early, late = (1 - correlation(trace.W[:, r], reference) for r in (-2, -1))
    rates = np.log(early / late) / np.log(trace.step[-1] / trace.step[-2])
    return rates.mean(), rates.std(ddof=1) / np.sqrt(SEEDS), late


def solutions(trace, norm="frobenius"):
    """SVM solutions of the tokens a run selected."""
    problems = (SelectionProblem(DATA.tokens[j], DATA.queries[j], trace.selected[j]) for j in range(SEEDS))
    return np.stack([solve(problem, norm, tol=1e-12).W for problem in problems])


@pytest.mark.parametrize(
    ("optimizer", "norm", "steps"),
    [
        (NormalizedGD(0.1), "frobenius", 3000),
        (NormalizedGD(1.0, "sqrt"), "frobenius", 3000),
        ("gd", "frobenius", 10_000),
        ("polyak", "frobenius", 1000),
        (MirrorDescent(p=1.75), 1.75, 2000),
        (MirrorDescent(p=3.0), 3, 20_000),
        (SignDescent(), "max", 2000),
        (SpectralDescent(), "spectral", 1000),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.slow
def test_each_optimiser_maximises_the_margin_in_its_norm(optimizer, norm, steps):
    trace = train(DATA, V, optimizer=optimizer, steps=steps, record_every=[steps // 4])
    missing, margin = shortfall(trace, norm)
    assert (margin[-1] > 0).all()
    assert (missing >= -1e-6).all()  # nothing beats the optimum, up to the accuracy of the reference solver
    assert (missing[-1] <= (np.log(N * T * GAMMA) + 1) / margin[-1]).all()
    assert missing[-1].mean() < missing[0].mean()


def test_momentum_reaches_the_svm_direction_in_a_thousand_steps():
    trace = train(DATA, V, optimizer="momentum", steps=1000)
    assert np.median(1 - correlation(trace.W[:, -1], solutions(trace))) <= 1e-8


def test_normalised_descent_converges_like_one_over_k_squared():
    trace = train(DATA, V, steps=10_000, record_every=[1000])
    rate, error, _ = exponents(trace, solutions(trace))
    # The norm grows like k and margins are unequal by log k at most: the error is between 1/k^2 and (log k / k)^2.
    lowest = 2 - 2 * np.log10(np.log(10_000) / np.log(1000))
    assert lowest - 3 * error <= rate <= 2 + 3 * error


def test_growing_steps_average_over_the_last_hundred():
    # 1 % growth weighs the last hundred gradients alone: the direction gets as far as a hundred steps get, and stays.
    trace = train(DATA, V, optimizer=NormalizedGD(0.1, "exponential"), steps=3000, record_every=1500)
    assert (trace.norm[:, -1] > 0.1 * 1.01**2999).all()
    rate, error, _ = exponents(trace, solutions(trace))
    assert abs(rate) <= 3 * error


def test_factors_go_to_the_nuclear_solution_jointly_and_not_separately():
    by_norm = {}
    for optimizer in ("normalized_gd", "separately_normalized_gd"):
        trace = train(DATA, V, parameterization="KQ", optimizer=optimizer, steps=4000, record_every=[1000])
        by_norm[optimizer] = exponents(trace, solutions(trace, "nuclear"))
    (rate, error, joint), (slow, slow_error, separate) = by_norm.values()
    assert rate >= 1 - 3 * error  # relative steps of 1/sqrt(k): a 1/k average over the steps made
    assert slow + 3 * slow_error < rate - 3 * error
    assert (joint < separate).all()  # 20 of 20: one in a million if neither were better


@pytest.mark.slow
def test_polyak_steps_on_factors_approach_the_nuclear_solution():
    trace = train(DATA, V, parameterization="KQ", optimizer="polyak", steps=2000, record_every=[500])
    rate, error, _ = exponents(trace, solutions(trace, "nuclear"))
    assert rate > 3 * error


@pytest.mark.slow
def test_adam_goes_elsewhere():
    trace = train(DATA, V, optimizer="adam", steps=2000, record_every=[500])
    reference = solutions(trace)
    rate, error, late = exponents(trace, reference)
    plain = train(DATA, V, steps=2000)
    assert (late > 1 - correlation(plain.W[:, -1], solutions(plain))).all()
    # Nothing that converges here is slower than 1/k; half of that is far from what Adam does.
    assert rate + 3 * error < 0.5
