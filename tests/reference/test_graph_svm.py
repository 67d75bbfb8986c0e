"""The Graph-SVM against a dense program over all ordered pairs, and against training on next-token data."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import minimize

from attsvm import Status, correlation
from attsvm.theory.graph import graph_svm, next_token_graphs


def reachable(edges: np.ndarray, size: int) -> np.ndarray:
    """Transitive closure by Warshall, reflexive."""
    reach = np.eye(size, dtype=bool)
    reach[tuple(edges.T)] = True
    for k in range(size):
        reach |= reach[:, [k]] & reach[[k], :]
    return reach


def draw(rng: np.random.Generator, vocabulary: int, count: int, length: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Any token may follow; two last tokens only, so that cycles arise."""
    rows = [np.append(rng.integers(vocabulary, size=length - 1), rng.integers(2)) for _ in range(count)]
    return rows, np.array([rng.choice(row) for row in rows])


def all_pairs(
    rng: np.random.Generator, vocabulary: int, count: int, length: int
) -> tuple[list[np.ndarray], np.ndarray]:
    """The smallest number of a sequence follows it: no cycles."""
    rows = [rng.integers(vocabulary, size=length) for _ in range(count)]
    return rows, np.array([row.min() for row in rows])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("make", [draw, all_pairs])
def test_all_ordered_pairs_give_the_same_matrix(seed: int, make) -> None:
    rng = np.random.default_rng(seed)
    embeddings = rng.standard_normal((6, 8))
    sequences, labels = make(rng, 6, 10, 4)
    svm = graph_svm(embeddings, sequences, labels)
    W, constraints, ties = cp.Variable((8, 8)), [], 0
    for last in {int(row[-1]) for row in sequences}:
        edges = [(y, x) for row, y in zip(sequences, labels, strict=True) if row[-1] == last for x in row]
        reach = reachable(np.array(edges), 6)
        for i in range(6):
            for j in range(6):
                gap = (embeddings[i] - embeddings[j]) @ W @ embeddings[last]
                if i < j and reach[i, j] and reach[j, i]:
                    constraints.append(gap == 0)
                    ties += 1
                elif reach[i, j] and not reach[j, i]:
                    constraints.append(gap >= 1)
    program = cp.Problem(cp.Minimize(cp.sum_squares(W)), constraints)
    program.solve(solver=cp.CLARABEL, tol_gap_rel=1e-10, tol_gap_abs=1e-10, tol_feas=1e-10)
    assert program.status == "optimal"
    assert svm.solution.status is Status.OPTIMAL
    assert svm.acyclic == (ties == 0) == (make is all_pairs)
    assert W.value is not None
    # A relative gap g leaves a direction error of sqrt(2 g), about 1e-5 for the reference.
    assert np.allclose(svm.W_svm, W.value, atol=1e-4 * max(1.0, np.linalg.norm(W.value)))
    assert svm.W_fin.any() == (ties > 0)


def next_token_risk(embeddings, sequences, labels):
    pulls_of = []
    for row, y in zip(sequences, labels, strict=True):
        features = (embeddings[row] - embeddings[y])[:, :, None] * embeddings[row[-1]]
        pulls_of.append((features.reshape(len(row), -1), row == y))

    def value(flat: np.ndarray) -> tuple[float, np.ndarray]:
        risk, slope = 0.0, np.zeros_like(flat)
        for features, hit in pulls_of:
            logits = features @ flat
            share = np.exp(logits - logits.max())
            total = share.sum()
            risk += float(logits.max() + np.log(total) - np.log(hit.sum()))
            slope += share @ features / total
        return risk, slope

    return value


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_regularised_training_goes_to_the_finite_part_and_the_direction(seed: int) -> None:
    """Minimisers of risk + (eps/2) ||W||^2: the cyclic part tends to W_fin, the rest turns into W_svm."""
    rng = np.random.default_rng(seed)
    embeddings = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    sequences, labels = draw(rng, 5, 12, 4)
    svm = graph_svm(embeddings, sequences, labels)
    assert not svm.acyclic
    risk = next_token_risk(embeddings, sequences, labels)
    spans = np.array(
        [
            np.outer(embeddings[i] - embeddings[j], embeddings[graph.last]).ravel()
            for graph in svm.graphs
            for i in range(5)
            for j in range(i)
            if graph.component[i] == graph.component[j]
        ]
    )
    project = np.linalg.pinv(spans) @ spans
    errors, cosines, flat = [], [], np.zeros(25)
    for eps in (1e-2, 1e-5, 1e-8):

        def regularised(x: np.ndarray, eps: float = eps) -> tuple[float, np.ndarray]:
            value, slope = risk(x)
            return float(value + eps / 2 * x @ x), slope + eps * x

        flat = minimize(regularised, flat, jac=True, method="BFGS", options={"gtol": 1e-11, "maxiter": 5000}).x
        errors.append(float(np.linalg.norm(project @ flat - svm.W_fin.ravel())))
        rest = (flat - project @ flat).reshape(5, 5)
        cosines.append(1 - float(correlation(rest, svm.W_svm)))
    # The masked tokens leave weight of order eps log(1/eps) behind; the direction turns like 1/log(1/eps).
    assert errors[-1] < 1e-5
    assert errors[0] > errors[1] > errors[2]
    assert cosines[2] < cosines[0]
    assert cosines[2] < 0.02


def test_a_two_cycle_settles_at_the_frequency_of_its_labels() -> None:
    """Tokens 0 and 1 follow token 2 three times and once: the scores differ by log 3, and token 2 loses to both."""
    embeddings = np.eye(3)
    sequences = [np.array([0, 1, 2])] * 4
    svm = graph_svm(embeddings, sequences, [0, 0, 0, 1])
    (graph,) = svm.graphs
    assert graph.component[0] == graph.component[1] != graph.component[2]
    gap = (embeddings[0] - embeddings[1]) @ svm.W_fin @ embeddings[2]
    assert gap == pytest.approx(np.log(3), abs=1e-13)
    # min a^2 + b^2 + c^2 with a = b >= c + 1: (1/3, 1/3, -2/3).
    assert np.allclose(svm.W_svm[:, 2], [1 / 3, 1 / 3, -2 / 3], atol=1e-7)
    assert not svm.W_svm[:, :2].any()


def test_repeated_tokens_share_the_loss() -> None:
    """A label that occurs twice has twice the attention for the same score."""
    svm = graph_svm(np.eye(3), [[0, 0, 1, 2], [0, 0, 1, 2]], [0, 1])
    gap = (np.eye(3)[0] - np.eye(3)[1]) @ svm.W_fin @ np.eye(3)[2]
    # 2 e^g / (2 e^g + 1) = 1/2 at the optimum of equal frequencies.
    assert gap == pytest.approx(-np.log(2), abs=1e-13)


def test_a_contradiction_between_last_tokens_is_proved() -> None:
    """The same embedding as last token twice, with opposite orders."""
    embeddings = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    svm = graph_svm(embeddings, [[0, 1, 2], [0, 1, 3]], [0, 1])
    assert svm.solution.status is Status.INFEASIBLE
    assert np.isnan(svm.W_svm).all()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((3, [[0, 1]], [2]), "labels"),
        ((3, [[0, 3]], [0]), "sequences"),
        ((3, [[-1, 1]], [1]), "sequences"),
        ((3, [[]], [0]), "sequences"),
        ((3, [], []), "labels"),
        ((3, [[0, 1]], [0.0]), "labels"),
    ],
)
def test_bad_input_gets_one_sentence(arguments: tuple, word: str) -> None:
    with pytest.raises(ValueError, match=rf"^{word}.*\.$"):
        next_token_graphs(*arguments)
    with pytest.raises(ValueError, match=r"^sequences.*\.$"):
        graph_svm(np.eye(3), [[1, 1]], [1])


@pytest.mark.parametrize("table", [np.ones(3), np.empty((0, 2)), np.array([[1.0, np.nan], [0.0, 1.0]])])
def test_embeddings_are_a_finite_table(table: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"^embeddings has shape .*\.$"):
        graph_svm(table, [[0, 1]], [0])
