"""Distances and summaries of a regularisation path, on paths made by hand."""

import numpy as np
import pytest

from attsvm import SelectionProblem, solve
from attsvm.core.norms import Norm, get_norm
from attsvm.training.paths.path_result import RegularizationPath

RADII, D, DZ = np.array([1.0, 10.0, 100.0]), 4, 2


def make_path(*batch: int, norm: str = "spectral", radius: np.ndarray = RADII) -> RegularizationPath:
    rng = np.random.default_rng(5)
    shape = (*batch, len(radius))
    numbers = np.broadcast_to([1e-3, 1e-9, 1e-6], shape)
    return RegularizationPath(
        radius, rng.standard_normal((*shape, D, DZ)), np.exp(-radius) + 0 * numbers, numbers, get_norm(norm)
    )


def unit(W: np.ndarray, norm: Norm) -> np.ndarray:
    return W / norm.value(W)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("shared", [False, True])
def test_the_distance_to_a_matrix_is_that_of_both_at_norm_one(batch: tuple[int, ...], shared: bool) -> None:
    path = make_path(*batch)
    target = np.random.default_rng(6).standard_normal((D, DZ) if shared else (*batch, D, DZ))
    targets = np.broadcast_to(target, (*batch, D, DZ))
    W = np.asarray(path.W)
    expected = np.empty((*batch, len(RADII)))
    for at in np.ndindex(expected.shape):
        expected[at] = np.sqrt(((unit(W[at], path.norm) - unit(targets[at[:-1]], path.norm)) ** 2).sum())
    np.testing.assert_allclose(path.distance(target), expected, rtol=1e-14)
    np.testing.assert_array_equal(path.distance(target.tolist()), path.distance(target))  # a list holds a matrix too


@pytest.mark.parametrize("kind", [list, tuple])
def test_the_distance_to_a_solution_is_that_to_its_matrix_if_there_is_one(kind: type) -> None:
    rng, path = np.random.default_rng(7), make_path(2, norm="frobenius")
    solutions = [
        solve(SelectionProblem(rng.standard_normal((1, 3, D)), rng.standard_normal((1, DZ)), [0])) for _ in "12"
    ]
    matrices = np.stack([np.asarray(one.W) for one in solutions])
    # The set is known to a slack of 1e-9 in norm, and so to the root of that across.
    np.testing.assert_allclose(path.distance(kind(solutions)), path.distance(matrices), atol=1e-4)
    alone = make_path(norm="frobenius")
    np.testing.assert_allclose(alone.distance(solutions[0]), alone.distance(matrices[0]), atol=1e-4)


def test_the_line_names_the_norm_the_radii_and_the_worst_stationarity() -> None:
    line = repr(make_path())
    assert line == "RegularizationPath(norm spectral, radii 3, from 1 to 100, largest stationarity 1.0e-03)"
    assert repr(make_path(2, 3)) == line


@pytest.mark.parametrize(
    ("batch", "radius", "drawn"), [((), RADII, True), ((), RADII / 2, False), ((2,), RADII, False)]
)
def test_the_card_draws_the_loss_of_one_trial_over_radii_from_one(
    batch: tuple[int, ...], radius: np.ndarray, drawn: bool
) -> None:
    card = make_path(*batch, radius=radius)._repr_html_()
    assert ("loss over the radius" in card) == ("<svg" in card) == drawn
