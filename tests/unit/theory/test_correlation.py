"""attsvm.correlation: a cosine that neither overflows nor divides by zero."""

import numpy as np
import pytest
import torch

from attsvm import correlation

RNG = np.random.default_rng(0)


def test_it_is_the_cosine():
    A, B = RNG.standard_normal((2, 4, 3, 5))
    expected = (A * B).sum((1, 2)) / np.linalg.norm(A, axis=(1, 2)) / np.linalg.norm(B, axis=(1, 2))
    np.testing.assert_allclose(correlation(A, B), expected, atol=1e-15)
    np.testing.assert_allclose(correlation(A[0], B), correlation(np.stack([A[0]] * 4), B), atol=1e-15)
    assert correlation(A[0], 3 * A[0]) == pytest.approx(1, abs=1e-15)


def test_tensors_stay_tensors():
    A, B = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    result = correlation(A, B)
    assert isinstance(result, torch.Tensor)
    np.testing.assert_allclose(result.numpy(), correlation(A.numpy(), B.numpy()), atol=1e-15)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_extreme_sizes(scale):
    A = RNG.standard_normal((3, 3))
    assert correlation(scale * A, A) == pytest.approx(1, abs=1e-14)


def test_matrices_of_a_stack_may_differ_in_size():
    A = RNG.standard_normal((2, 3, 3))
    sizes = np.array([1e-200, 1e200])[:, None, None]
    np.testing.assert_allclose(correlation(sizes * A, A), [1.0, 1.0], atol=1e-14)
    np.testing.assert_allclose(correlation(torch.tensor(sizes * A), torch.tensor(A)), [1.0, 1.0], atol=1e-14)


def test_zero_has_no_direction():
    assert correlation(np.zeros((2, 2)), np.eye(2)) == 0


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"A has shape \(2, 3\) and B \(3, 2\)"):
        correlation(np.ones((2, 3)), np.ones((3, 2)))
    with pytest.raises(ValueError, match="matrices were expected"):
        correlation(np.ones(3), np.ones(3))
