"""Regularisation paths end in the SVM solutions that Theorems 2, 9 and 10 of arXiv 2308.16898 name.

The tolerance. Let nu be the smallest norm of the SVM, N = n (T - 1), and let Gamma bound the ratio of two products of a
score gap and a slope of the loss. At radius R the excess risk of a W that selects with smallest margin m is at least
c e^-m / T, that of R W_mm / nu at most c Gamma N e^(-R/nu), for a c that cancels. The minimiser is no worse than the
latter, so m >= R/nu - log(N T Gamma): as a share of the best possible, R/nu, its margin falls short by at most
nu log(N T Gamma) / R. In the Frobenius norm 1 - cos is at most this shortfall, because W/m is feasible and W_mm the
projection of 0 on the feasible set.
"""

import cvxpy as cp
import numpy as np
import pytest
import torch

from attsvm import SelectionProblem, TokenData, correlation, solve
from attsvm.core.norms import get_norm
from attsvm.data.synthetic import random_data
from attsvm.solution.solution_set import SLACK, distance_to_solutions
from attsvm.training.paths.balls import ball_of
from attsvm.training.paths.path import _Sphere, regularization_path
from attsvm.training.risk.objective import Objective

TRIALS, N, T, D = 2, 3, 4, 4
DATA, V = random_data(TRIALS, N, T, D, gap=0.1, seed=4)
SCORES = DATA.labels[..., None] * np.einsum("bntd,bd->bnt", DATA.tokens, V)
RADII = [10, 100, 1000]
SMOOTH = ("frobenius", 1.75, 3)  # balls without corners, where the stationarity is of second order in the error
NORMS = (*SMOOTH, "nuclear", "spectral", "max", 1)


def missing_margin(data: TokenData, W, selected, smallest, radius):
    """Share of the best possible margin that W misses; the smallest is over all tokens not selected."""
    logits = np.einsum("ntd,...de,ne->...nt", data.tokens, W, data.queries)
    index = np.broadcast_to(selected[:, None], (*logits.shape[:-1], 1))
    margins = np.take_along_axis(logits, index, -1) - logits
    np.put_along_axis(margins, index, np.inf, -1)
    return 1 - margins.min((-2, -1)) * smallest / np.asarray(radius)


def tangents(scores: np.ndarray, selected, smallest, radius):
    """The bound of the module's docstring, for the logistic loss."""
    gaps = np.abs(np.take_along_axis(scores, selected[:, None], -1) - scores)
    slopes = 1 / (1 + np.exp(scores))
    Gamma = gaps.max() / gaps[gaps > 0].min() * slopes.max() / slopes.min()
    n, T = scores.shape
    return smallest * np.log(n * (T - 1) * T * Gamma) / np.asarray(radius)


def svm(trial, selected, norm="frobenius"):
    return solve(SelectionProblem(DATA.tokens[trial], DATA.queries[trial], selected), norm, tol=1e-12)


@pytest.mark.parametrize(
    "norm", [pytest.param(norm, marks=pytest.mark.slow) if norm in ("max", 1) else norm for norm in NORMS], ids=str
)
@pytest.mark.slow
def test_the_global_path_goes_to_the_optimal_tokens_in_every_norm(norm):
    data, v, scores, selected = DATA[:1], V[:1], SCORES[0], SCORES[0].argmax(-1)
    path = regularization_path(data, v, RADII, norm=norm)
    solution = svm(0, selected, norm)
    bound = tangents(scores, selected, solution.objective, RADII)
    missing = missing_margin(data[0], path.W[0], selected, solution.objective, RADII)
    assert (missing <= bound).all()
    assert (missing >= -1e-9).all()  # nothing beats the certified optimum
    distance = path.distance([solution])[0]
    # The set is known to a slack of 1e-9 in norm, its curved directions to the root of that.
    assert (np.diff(distance) <= np.sqrt(2 * SLACK)).all()
    assert distance[-1] < distance[0]
    if norm == "frobenius":
        assert (distance**2 / 2 <= bound).all()
    assert (np.diff(path.loss) <= 1e-15).all()
    # L-BFGS stops at 1e-10; at corners the measure is of first order, and 1e-4 counts as caught elsewhere.
    assert (path.stationarity <= (1e-9 if norm in SMOOTH else 1e-4)).all()
    size = np.array([path.norm.value(W) for W in path.W[0]])
    assert (size <= path.radius * (1 + 1e-12)).all()
    if norm in SMOOTH:
        np.testing.assert_allclose(size, path.radius, rtol=1e-12)


def test_the_distance_is_to_the_set_where_there_are_many_solutions():
    """On this instance the spectral solutions are many: the path picks another one than the solver."""
    selected = SCORES[0].argmax(-1)
    path = regularization_path(DATA[:1], V[:1], [1000, 10_000], norm="spectral")
    solution = svm(0, selected, "spectral")
    assert (path.distance([solution]) < 0.01 * path.distance(solution.W)).all()
    # The path's own end is a solution: it has the margin to the last digits.
    missing = missing_margin(DATA[0], path.W[0, -1], selected, solution.objective, 10_000)
    assert abs(missing) <= 1e-9


@pytest.mark.parametrize("norm", ["nuclear", "spectral", "max", 1], ids=str)
def test_the_distance_to_a_set_is_that_of_a_cone_program(norm):
    selected = SCORES[1].argmax(-1)
    solution = svm(1, selected, norm)
    far = np.random.default_rng(3).standard_normal((D, D))
    X, W = cp.Variable((D, D)), solution.W
    slack = 1e-3
    rows = [
        (DATA.tokens[1, i, a] - np.delete(DATA.tokens[1, i], a, 0)) @ X @ DATA.queries[1, i]
        >= (1 - slack) / solution.objective
        for i, a in enumerate(selected)
    ]
    flat = cp.vec(X, order="C")
    size = {"nuclear": cp.normNuc(X), "spectral": cp.norm(X, 2), "max": cp.norm(flat, "inf"), 1: cp.norm(flat, 1)}
    unit = far / solution.norm.value(far)
    program = cp.Problem(cp.Minimize(cp.norm(X - unit, "fro")), [*rows, size[norm] <= 1])
    expected = program.solve(solver=cp.CLARABEL)
    # The reference violates constraints by 1e-8, a share 1e-5 of the slack that gives the set its depth.
    assert distance_to_solutions(far, solution, slack) == pytest.approx(expected, rel=1e-4)
    # The square of the distance is what is computed.
    assert distance_to_solutions(W, solution) <= np.sqrt(2 * np.finfo(float).eps)


def test_small_balls_point_along_the_first_gradient():
    path = regularization_path(DATA, V, [1e-5])
    for trial in range(TRIALS):
        x, z, y, v = DATA.tokens[trial], DATA.queries[trial], DATA.labels[trial], V[trial]
        mean = x.mean(1)
        gamma = y[:, None] * (x @ v)
        slope = -1 / (1 + np.exp(gamma.mean(1)))
        first = sum(
            slope[i] * np.outer((gamma[i] - gamma[i].mean()) @ (x[i] - mean[i]) / T, z[i]) for i in range(N)
        )  # fmt: skip
        assert correlation(path.W[trial, 0], -first) > 1 - 1e-8


def local_directions(data, v):
    """Every locally optimal selection that is not the best, with its SVM solution."""
    scores = data.labels[:, None] * (data.tokens @ v)
    for selected in map(np.array, np.ndindex((data.T,) * data.n)):
        solution = solve(SelectionProblem(data.tokens, data.queries, selected), tol=1e-12)
        if solution.status.name != "OPTIMAL" or (selected == scores.argmax(-1)).all():
            continue
        ahead = np.take_along_axis(scores, selected[:, None], 1) - scores
        if (ahead[np.asarray(solution.support)] > 0).all():
            yield selected, solution.W


def in_cone(data, scores, selected, W, epsilon):
    """cone_epsilon(alpha) of the paper, word for word, and alpha selected."""
    for x, z, score, a in zip(data.tokens, data.queries, scores, selected, strict=True):
        a_logit, logits = x[a] @ W @ z, x @ W @ z
        if any(logits[t] >= a_logit for t in range(len(x)) if t != a):
            return False
        low = [t for t in range(len(x)) if score[t] < score[a]]
        high = [t for t in range(len(x)) if t != a and score[t] >= score[a]]
        if high:
            lead = max((min(logits[t] - logits[tau] for tau in high) for t in low), default=-np.inf)
            if lead < epsilon * np.linalg.norm(W):
                return False
    return True


def test_the_cone_is_the_paper_s():
    data, v = random_data(None, 2, 4, 5, gap=0.05, seed=1)
    scores = data.labels[:, None] * (data.tokens @ v)
    objective = Objective.from_data(data, v)
    rng, verdicts = np.random.default_rng(0), []
    for selected in map(np.array, np.ndindex(4, 4)):
        sphere = _Sphere(objective, ball_of(get_norm("frobenius"), 5, 5, None), torch.as_tensor(selected)[None], 0.02)
        for _ in range(15):
            W = rng.standard_normal((5, 5))
            verdicts.append(in_cone(data, scores, selected, W, 0.02))
            assert sphere.in_cone(torch.as_tensor(W)) == verdicts[-1]
    assert set(verdicts) == {True, False}


@pytest.mark.slow
def test_local_paths_stay_in_their_cones_and_go_to_their_own_solutions():
    """In the cone a low token is ahead of all high ones by epsilon R: they add e^(-epsilon R) to the bound, e^-15."""
    data, v = random_data(None, 3, 4, 5, gap=0.1, seed=6)
    scores = data.labels[:, None] * (data.tokens @ v)
    directions, epsilon = list(local_directions(data, v)), 0.005
    assert len(directions) == 4
    for selected, solution in directions:
        radii = np.array([3000, 30_000, 300_000])
        path = regularization_path(data, v, radii, tokens=selected, epsilon=epsilon, init=solution)
        smallest = np.linalg.norm(solution)
        bound = tangents(scores, selected, smallest, radii)
        assert (missing_margin(data, path.W, selected, smallest, radii) <= bound).all()
        distance = path.distance(solution)
        assert (distance**2 / 2 <= bound).all()
        assert (np.diff(distance) < 0).all()
        assert all(in_cone(data, scores, selected, W, epsilon) for W in path.W)
        assert (path.stationarity < 1e-9).all()


def test_a_local_path_finds_its_own_start():
    data, v = random_data(None, 3, 4, 5, gap=0.1, seed=6)
    selected, solution = next(local_directions(data, v))
    path = regularization_path(data, v, [300, 3000], tokens=selected)
    scores = data.labels[:, None] * (data.tokens @ v)
    assert 1 - correlation(path.W[-1], solution) <= tangents(scores, selected, np.linalg.norm(solution), 3000)


@pytest.mark.parametrize("norm", ["nuclear", 3])
@pytest.mark.slow
def test_local_paths_exist_in_other_norms(norm):
    """Theorem 10: from inside the cone the path keeps its tokens and its margin grows to the best possible."""
    data, v = random_data(None, 3, 4, 5, gap=0.1, seed=6)
    scores = data.labels[:, None] * (data.tokens @ v)
    selected, _ = next(local_directions(data, v))
    solution = solve(SelectionProblem(data.tokens, data.queries, selected), norm, tol=1e-12)
    radii = np.array([3000, 30_000])
    path = regularization_path(data, v, radii, norm=norm, tokens=selected, init=solution.W)
    missing = missing_margin(data, path.W, selected, solution.objective, radii)
    assert (missing <= tangents(scores, selected, solution.objective, radii)).all()


def test_heads_that_keep_the_order_of_scores_have_the_same_limit():
    """Theorem 10 under condition E: a monotone function of a linear head, at radii where the risk is above rounding."""
    data, v = random_data(None, 2, 3, 4, gap=0.1, seed=2)
    scores = data.labels[:, None] * (data.tokens @ v)
    selected = scores.argmax(-1)
    solution = solve(SelectionProblem(data.tokens, data.queries, selected), tol=1e-12)
    path = regularization_path(data, lambda x: (x @ torch.as_tensor(v)).sinh(), [10, 20, 40])
    distance = path.distance(solution)
    assert (np.diff(distance) < 0).all()
    # sinh stretches scores in [-1, 1] by a factor between 1 and cosh 1 < 1.6, and so the ratio Gamma.
    bound = tangents(scores, selected, solution.objective, [10, 20, 40]) + solution.objective * np.log(1.6) / 10
    assert (distance**2 / 2 <= bound).all()


def test_tensors_and_masks():
    mask = np.ones((N, T), dtype=bool)
    mask[0, 0] = False
    tensors = (torch.as_tensor(a) for a in (DATA.tokens[0], DATA.queries[0], DATA.labels[0], mask))
    masked = TokenData(*tensors)
    path = regularization_path(masked, torch.as_tensor(V[0]), [100.0, 3000.0])
    assert isinstance(path.W, torch.Tensor)
    best = np.where(mask, SCORES[0], -np.inf).argmax(-1)
    reference = solve(SelectionProblem(DATA.tokens[0], DATA.queries[0], best, mask=mask))
    bound = tangents(SCORES[0], best, reference.objective, 3000)
    assert 1 - correlation(path.W[-1], torch.as_tensor(reference.W)) <= bound
    assert isinstance(path.distance(reference), torch.Tensor)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"radii": []}, r"radii has shape \(0,\)"),
        ({"radii": [2, 1]}, "radii has shape"),
        ({"radii": "far"}, "radii"),
        ({"data": 3}, "data has type int"),
        ({"epsilon": -1.0}, "epsilon is -1.0"),
        ({"tol": "small"}, "tol is 'small'"),
        ({"max_iter": 0}, "max_iter is 0"),
        ({"norm": "taxi"}, r"norm is .*; one of"),
        ({"norm": 0.5}, r"norm is .*; one of"),
        ({"rank": 2}, "rank is 2 for norm='frobenius'"),
        ({"tokens": np.zeros(N, dtype=int)}, "tokens has shape"),
        ({"tokens": np.full((TRIALS, N), T)}, "outside 0 to 3"),
        ({"tokens": SCORES.argmin(-1), "init": np.eye(D), "epsilon": 1.0}, "outside cone_epsilon"),
    ],
)
def test_bad_arguments_are_named(options, sentence):
    arguments = {"data": DATA, "head": V, "radii": [1.0], **options}
    with pytest.raises(ValueError, match=sentence):
        regularization_path(**arguments)


def test_distances_name_what_does_not_fit():
    path = regularization_path(DATA[:1], V[:1], [1.0])
    with pytest.raises(ValueError, match="is in the norm 'nuclear'; 'frobenius'"):
        path.distance(svm(0, SCORES[0].argmax(-1), "nuclear"))
    with pytest.raises(ValueError, match="has 2 solutions for 1 trials"):
        path.distance([svm(0, SCORES[0].argmax(-1))] * 2)
    with pytest.raises(ValueError, match="W has shape"):
        distance_to_solutions(np.zeros((D, D)), svm(0, SCORES[0].argmax(-1)))
