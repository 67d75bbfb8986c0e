"""The max-margin problems of prompt attention, with the published numbers."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm import Status
from attsvm.theory.prompt import joint_svm, p_svm, v_svm

EPS = float(np.finfo(float).eps)


def published(height: float) -> tuple[np.ndarray, np.ndarray]:
    """The inputs {(0,0),(1,1)}, {(0,0),(1,-1)}, {(0,0),(1/2,height)} of arXiv 2306.13596, labels 1, -1, 1."""
    candidates = np.array([[1.0, 1.0], [1.0, -1.0], [0.5, height]])
    return np.stack([np.zeros_like(candidates), candidates], axis=1), np.array([1.0, -1.0, 1.0])


@pytest.mark.parametrize(
    ("height", "p", "support"), [(1.0, (4 / 3, 1 / 3), [True] * 3), (1.5, (1.0, 0.0), [True, True, False])]
)
def test_the_published_joint_directions(height: float, p: tuple[float, float], support: list[bool]) -> None:
    tokens, labels = published(height)
    svm = joint_svm(tokens, tokens, labels, np.ones(3, dtype=int))
    assert np.allclose(svm.v, (0.0, 1.0), atol=1e-7)
    assert svm.support.tolist() == support
    assert np.allclose(svm.p, p, atol=1e-9)
    assert abs(svm.gap) < 1e-12


def test_without_relaxation_both_instances_ask_for_the_tight_prompt() -> None:
    tokens, _ = published(1.5)
    # p_1 - p_2 >= 1 and p_1 + p_2 >= 1 and p_1/2 + 3 p_2/2 >= 1: the outer two are tight, p = (5/4, 1/4).
    assert np.allclose(p_svm(tokens, [1, 1, 1]).W[:, 0], (1.25, 0.25), atol=1e-7)


def test_the_prompt_svm_of_two_inputs() -> None:
    keys = np.array([[[2.0, 0.0], [0.0, 5.0]], [[1.0, 3.0], [0.0, 3.0]]])
    svm = p_svm(keys, [0, 0])
    # (2, -5).p >= 1 and (1, 0).p >= 1: (1, 0) meets the second tightly and the first with room.
    assert np.allclose(svm.W[:, 0], (1.0, 0.0), atol=1e-7)
    assert np.asarray(svm.support).sum() == 1


def test_labels_that_no_line_separates_are_proved_so() -> None:
    svm = v_svm([[1.0, 1.0], [2.0, 2.0]], [1.0, -1.0])
    assert svm.status is Status.INFEASIBLE


def test_a_prompt_that_does_not_exist_is_nan() -> None:
    tokens = np.array([[[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0]]])
    svm = joint_svm(tokens, tokens + 1.0, [1.0], [0])
    assert np.isnan(svm.p).all()
    assert svm.gap == np.inf


def test_without_support_vectors_nothing_is_asked_of_p() -> None:
    """Labels that no line separates leave no support vector: every constraint on p relaxes to zero, and p = 0."""
    tokens = np.array([[[1.0, 1.0], [0.0, 1.0]], [[1.0, 1.0], [0.0, 2.0]]])
    svm = joint_svm(tokens, tokens, [1.0, -1.0], [0, 0])
    assert np.isnan(svm.v).all()
    assert not svm.support.any()
    assert svm.p.tolist() == [0.0, 0.0]
    assert svm.gap == 0.0


def test_relaxed_constraints_against_a_dense_program() -> None:
    import cvxpy as cp

    rng, count = np.random.default_rng(0), 0
    for _ in range(20):
        tokens, v = rng.standard_normal((4, 3, 5)), rng.standard_normal(5)
        selected = rng.integers(3, size=4)
        labels = np.sign(tokens[np.arange(4), selected] @ v)
        svm = joint_svm(tokens, tokens, labels, selected)
        p, constraints = cp.Variable(5), []
        for i in range(4):
            for t in range(3):
                if t != selected[i]:
                    constraints.append((tokens[i, selected[i]] - tokens[i, t]) @ p >= float(svm.support[i]))
        program = cp.Problem(cp.Minimize(cp.sum_squares(p)), constraints)
        program.solve(solver=cp.CLARABEL, tol_gap_rel=1e-10, tol_gap_abs=1e-10, tol_feas=1e-10)
        if program.status != "optimal":
            assert np.isnan(svm.p).all()
            continue
        assert p.value is not None
        count += int((~svm.support).any())
        assert abs(svm.gap) < 1e-10
        # sqrt(2 * 1e-10) of the length, the reference's direction error.
        assert np.allclose(svm.p, p.value, atol=3e-5 * np.linalg.norm(p.value))
    assert count > 3


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: v_svm([[1.0]], [2.0]), "inputs"),
        (lambda: v_svm([[1.0], [2.0]], [1.0, 2.0]), "inputs"),
        (lambda: v_svm([1.0], [1.0]), "inputs"),
        (lambda: joint_svm(np.zeros((2, 2, 2)), np.zeros((2, 3, 2)), [1, 1], [0, 0]), "values"),
        (lambda: p_svm(np.zeros((2, 2, 2)), [0]), "selected"),
    ],
)
def test_bad_input_gets_one_sentence(call, word: str) -> None:
    with pytest.raises(ValueError, match=rf"^{word}.*\.$"):
        call()


def test_the_least_margin_of_a_support_vector_is_one_to_the_last_digits() -> None:
    """The gap is that of a p which keeps its constraints, so p is scaled to them."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        keys = np.concatenate([np.zeros((1, 1, 3)), rng.standard_normal((1, 1, 3)) - rng.random((1, 3, 3))], axis=1)
        svm = joint_svm(keys, keys + 1.0, [1.0], [0])
        if np.isfinite(svm.gap):
            margins = -keys[0, 1:] @ svm.p
            # A product of three terms, and the division by the least one.
            assert abs(margins.min() - 1) <= 4 * EPS * float((np.abs(keys[0, 1:]) @ np.abs(svm.p)).max())
