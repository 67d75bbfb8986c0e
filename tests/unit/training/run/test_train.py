"""train(): what goes in, what comes out, and where exact training ends up."""

from typing import Any

import numpy as np
import pytest
import torch

from attsvm import TokenData, correlation, train
from attsvm.data.synthetic import random_data
from attsvm.training.optimisers.descent import SeparatelyNormalizedGD
from attsvm.training.risk.objective import Objective
from attsvm.training.run import recording
from attsvm.training.run.initial import aligned_factors
from attsvm.training.run.recording import RangeWatch

DATA, V = random_data(3, 4, 5, 6, gap=0.05, seed=1)

# arXiv 2308.16898 v1, Theorems 4 and 5 claim global convergence from every start; on this instance they are false.
COUNTEREXAMPLE = TokenData(np.array([[[1.0, 0], [0, 0]], [[-2, 1], [0, 0]]]), np.array([[1.0, 0], [1, 0]]), [1, 1])
COUNTER_HEAD = np.array([1.0, 3.5])  # scores (1, 0) and (1.5, 0)
COUNTER_SVM = np.array([[1.0, 0], [3, 0]])


def test_exact_descent_stays_at_a_local_direction_for_ever():
    """From 4 e1 e1^T sequence 1 alone pulls, along e1; sequence 2 sits on its worse token, saturated twice as deep.

    With w1 = (W)_11, sequence 1 has margin w1 and sequence 2 margin 2 w1 against it, so the ratio of their pulls is at
    most C e^-w1, where C = 1.5 sqrt(5) (1 + e^-1.5) / (1/2) < 9 bounds scores, tokens and slopes. Steps of 0.1 let w1
    grow by 0.1 (1 - C e^-4) or more: W turns by at most sum 0.1 C e^-w1 < 1.2 C e^-4 / (1 - C e^-4) < 0.25 over w1.
    """
    init = np.array([[4.0, 0], [0, 0]])
    trace = train(COUNTEREXAMPLE, COUNTER_HEAD, steps=200_000, init=init, record_every=20_000)
    angle = 0.25 / trace.W[1:, 0, 0]
    assert (trace.W[1:, 0, 0] > 0.08 * trace.step[1:]).all()
    # (1, 3)/sqrt(10) has the component 3/sqrt(10) across e1.
    assert (np.abs(correlation(trace.W, COUNTER_SVM)[1:] - 1 / np.sqrt(10)) <= angle * 3 / np.sqrt(10) + angle**2).all()


def test_exact_descent_from_zero_goes_to_the_svm_direction():
    trace = train(COUNTEREXAMPLE, COUNTER_HEAD, steps=20_000, record_every=2000)
    margins = np.minimum(trace.W[1:, 0, 0], trace.W[1:, 1, 0] - 2 * trace.W[1:, 0, 0])
    # The soft minimum over two constraints whose weights differ by less than a factor 2: 1 - rho <= (log 4 + 1) / m.
    missing = 1 - correlation(trace.W, COUNTER_SVM)[1:]
    assert (missing <= (np.log(4) + 1) / margins).all()
    assert (np.diff(missing) < 0).all()


def test_plain_autograd_escapes_the_local_direction_through_rounding():
    init = np.array([[4.0, 0], [0, 0]])
    trace = train(COUNTEREXAMPLE, COUNTER_HEAD, steps=3500, init=init, numerics="autograd", record_every=[3000])
    # Sequence 2, saturated first, loses its gradient at margin 36.7, and sequence 1 alone drags W to the SVM direction,
    # where the true dynamics never go; then that gradient dies too and the norm stands still.
    assert trace.stationary
    assert trace.norm[-1] == trace.norm[-2]
    # Both margins end where a probability rounds to 1, -log(eps / 2), give or take one step of 0.1 over tokens of
    # length sqrt(5): unequal by a share r of their size at most, which turns W from (1, 3) by less than r.
    margins = np.array([trace.W[-1, 0, 0], trace.W[-1, 1, 0] - 2 * trace.W[-1, 0, 0]])
    r = 2 * 0.1 * np.sqrt(5) / 36.7
    assert np.abs(margins / -np.log(np.finfo(float).eps / 2) - 1).max() <= r
    assert correlation(trace.W[-1], COUNTER_SVM) >= np.cos(r)
    exact = train(COUNTEREXAMPLE, COUNTER_HEAD, steps=3000, init=init)
    assert not exact.stationary
    assert correlation(exact.W[-1], COUNTER_SVM) < correlation(trace.W[-1], COUNTER_SVM)
    assert exact.norm[-1] > trace.norm[-1]


def test_shapes_records_and_kinds():
    trace = train(DATA, V, steps=25, record_every=10)
    assert trace.step.tolist() == [0, 10, 20, 25]
    assert trace.W.shape == (3, 4, 6, 6)
    assert trace.loss.shape == trace.norm.shape == (3, 4)
    assert trace.attention.shape == (3, 4, 4, 5)
    assert trace.selected.shape == (3, 4)
    assert trace.K is None
    assert trace.Q is None
    np.testing.assert_array_equal(trace.selected, trace.attention[:, -1].argmax(-1))
    np.testing.assert_allclose(trace.attention.sum(-1), 1)
    np.testing.assert_allclose(trace.norm, np.linalg.norm(trace.W, axis=(-2, -1)))
    assert (np.diff(trace.loss) < 0).all()
    assert "normalized_gd on W, 25 steps, 4 records" in repr(trace)
    for array in (trace.W, trace.loss, trace.attention):
        assert array.dtype == np.float64
    assert train(DATA, V, steps=5, record_every=[3]).step.tolist() == [0, 3, 5]
    assert train(DATA, V, steps=0).step.tolist() == [0]


def test_one_trial_has_no_batch_dimension():
    trace = train(DATA[0], V[0], steps=3)
    assert trace.W.shape == (2, 6, 6)
    assert trace.selected.shape == (4,)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_tensors_in_tensors_out(dtype):
    tensors = [torch.as_tensor(a, dtype=dtype) for a in (DATA.tokens, DATA.queries, DATA.labels)]
    trace = train(TokenData(*tensors), torch.as_tensor(V, dtype=dtype), steps=50)
    for tensor in (trace.W, trace.loss, trace.attention, trace.norm):
        assert isinstance(tensor, torch.Tensor)
        assert tensor.dtype == dtype
    assert not trace.selected.is_floating_point()
    # Computed in float64: only data and result are rounded to the dtype, and 50 steps of 0.1 amplify that little.
    reference = train(DATA, V, steps=50).W
    np.testing.assert_allclose(trace.W.double().numpy(), reference, atol=1e-12 if dtype == torch.float64 else 1e-3)


def test_data_may_carry_gradients_of_their_own():
    tensors = [torch.tensor(a, requires_grad=True) for a in (DATA.tokens, DATA.queries)]
    trace = train(TokenData(*tensors, torch.tensor(DATA.labels)), torch.tensor(V, requires_grad=True), steps=5)
    assert not trace.W.requires_grad
    np.testing.assert_array_equal(trace.W.numpy(), train(DATA, V, steps=5).W)


def test_data_may_be_read_only():
    arrays = [np.array(a) for a in (DATA.tokens, DATA.queries, DATA.labels)]
    for array in arrays:
        array.setflags(write=False)
    np.testing.assert_array_equal(train(TokenData(*arrays), V, steps=5).W, train(DATA, V, steps=5).W)


def test_dtype_can_be_asked_for():
    trace = train(DATA, V, steps=10, dtype="float32")
    assert trace.W.dtype == np.float32
    assert trace.backend == "torch"
    assert train(DATA, V, steps=10, dtype=np.float64).backend == "compiled"


def test_factors_multiply_to_W():
    trace = train(DATA, V, parameterization="KQ", rank=3, steps=40, record_every=20)
    assert trace.K.shape == trace.Q.shape == (3, 3, 6, 3)
    np.testing.assert_allclose(trace.W, trace.K @ np.swapaxes(trace.Q, -1, -2), atol=1e-14)
    assert (trace.Q[:, 0] == 0).all()
    assert (trace.loss[:, -1] < trace.loss[:, 0]).all()


@pytest.mark.parametrize("parameterization", ["W", "KQ"])
def test_a_run_is_joined_to_one_that_begins_at_its_end_alone(parameterization: str) -> None:
    options: dict[str, Any] = {"parameterization": parameterization, "steps": 20, "record_every": 10}
    first = train(DATA, V, **options)
    ends = [getattr(first, name)[:, -1] for name in parameterization]
    later = train(DATA, V, init=tuple(ends) if len(ends) == 2 else ends[0], **options)
    whole = first.followed_by(later)
    assert whole.step.tolist() == [0, 10, 20, 30, 40]
    for name in (*parameterization, "W", "loss"):
        one, two = getattr(first, name), getattr(later, name)
        np.testing.assert_array_equal(getattr(whole, name), np.concatenate([one, two[:, 1:]], 1))
    with pytest.raises(ValueError, match=f"later begins at another {parameterization[0]}; the end of the earlier run"):
        later.followed_by(first)


@pytest.mark.parametrize(("parameterization", "trained"), [("W", "W"), ("KQ", "K and Q")])
@pytest.mark.parametrize("alone", [True, False])
def test_the_card_names_what_was_trained_and_draws_the_norm_of_one_trial(
    parameterization: Any, trained: str, alone: bool
) -> None:
    data, v = (DATA[0], V[0]) if alone else (DATA, V)
    card = train(data, v, parameterization=parameterization, steps=2)._repr_html_()
    assert f">{trained} by normalized_gd, exact numerics<" in card
    assert ("norm of W over steps" in card) == ("<svg" in card) == alone


def test_starts():
    inputs = np.random.default_rng(0).standard_normal((3, 6, 6))
    np.testing.assert_array_equal(train(DATA, V, steps=0, init=inputs).W[:, 0], inputs)
    np.testing.assert_array_equal(train(DATA, V, steps=0, init=inputs[1]).W[2, 0], inputs[1])
    uniform = train(DATA, V, steps=0, init="torch", seed=5).W[:, 0]
    assert 0.3 < np.abs(uniform).max() <= 6**-0.5
    other_trace = train(DATA, V, steps=0, init="torch", seed=5, backend="torch").W[:, 0]
    np.testing.assert_array_equal(uniform, other_trace)
    one_by_one = train(DATA, V, steps=0, init="torch", seed=[7, 8, 9]).W[:, 0]
    np.testing.assert_array_equal(one_by_one[2], train(DATA[2], V[2], steps=0, init="torch", seed=[9]).W[0])
    K, Q = inputs, -inputs
    trace = train(DATA, V, steps=0, init=(K, Q), parameterization="KQ")
    np.testing.assert_array_equal(trace.K[:, 0], K)
    np.testing.assert_array_equal(trace.Q[:, 0], Q)
    narrow = train(DATA, V, steps=0, init=(K[..., :2], Q[..., :2]), parameterization="KQ")
    assert narrow.K is not None
    assert narrow.Q is not None
    np.testing.assert_array_equal(narrow.K[:, 0], K[..., :2])
    np.testing.assert_array_equal(narrow.Q[:, 0], Q[..., :2])


def narrow_queries() -> TokenData:
    return TokenData(DATA.tokens, DATA.queries[..., :2], DATA.labels)


def test_each_factor_starts_within_one_over_the_root_of_its_height() -> None:
    trace = train(narrow_queries(), V, steps=0, init="torch", parameterization="KQ", rank=50)
    assert trace.K is not None
    assert trace.Q is not None
    for factor, height in ((trace.K, 6), (trace.Q, 2)):
        # Of hundreds of uniform numbers the largest is above 0.9 of the bound.
        assert 0.9 * height**-0.5 < np.abs(factor).max() <= height**-0.5


@pytest.mark.parametrize("shape", [(2, 6, 3), (3, 2, 6, 3)])
def test_several_heads_start_from_factors_of_their_own(shape: tuple[int, ...]) -> None:
    K, Q = np.random.default_rng(1).standard_normal((2, *shape))
    trace = train(DATA, V, steps=0, heads=2, init=(K, Q), parameterization="KQ")
    assert trace.K is not None
    assert trace.Q is not None
    np.testing.assert_array_equal(trace.K[:, 0], np.broadcast_to(K, (3, 2, 6, 3)))
    np.testing.assert_array_equal(trace.Q[:, 0], np.broadcast_to(Q, (3, 2, 6, 3)))


def test_aligned_factors_are_as_wide_as_the_shorter_side() -> None:
    K, Q = aligned_factors(Objective.from_data(narrow_queries(), V), "KQ", None)
    assert (K.shape, Q.shape) == ((3, 6, 2), (3, 2, 2))


@pytest.mark.parametrize("rank", [None, 1, 6])
def test_aligned_factors_lie_along_the_largest_singular_vectors_of_the_first_step(rank: int | None) -> None:
    trace = train(DATA, V, steps=0, init="aligned", parameterization="KQ", rank=rank)
    first_step = -Objective.from_data(DATA, V).gradient(torch.zeros(3, 6, 6, dtype=torch.float64)).W.numpy()
    assert trace.K is not None
    assert trace.Q is not None
    for K, Q, step in zip(trace.K[:, 0], trace.Q[:, 0], first_step, strict=True):
        largest = np.linalg.svd(step, compute_uv=False)[:rank]
        for factor in (K, Q):
            np.testing.assert_allclose(factor.T @ factor, 0.01 * np.eye(len(largest)), atol=1e-15)
        np.testing.assert_allclose(K.T @ step @ Q, 0.01 * np.diag(largest), atol=1e-15)


@pytest.mark.parametrize("rank", [0, 7, True, 1.5])
def test_aligned_factors_have_at_most_the_rank_of_a_matrix(rank: Any) -> None:
    with pytest.raises(ValueError, match=f"rank is {rank!r}; an integer from 1 to 6 was expected with init='aligned'"):
        aligned_factors(Objective.from_data(DATA, V), "KQ", rank)


def test_a_start_is_not_changed():
    start = np.ones((3, 6, 6))
    for backend in ("torch", "compiled"):
        train(DATA, V, steps=5, init=start, backend=backend)
        assert (start == 1).all()


def test_callback_sees_progress_and_can_stop():
    calls = []
    trace = train(DATA, V, steps=500, callback=lambda step, steps: calls.append((step, steps)))
    assert calls[0] == (0, 500)
    assert calls[-1] == (500, 500)
    assert len(calls) == 101
    assert not trace.stopped
    trace = train(DATA, V, steps=500, record_every=100, callback=lambda step, steps: step >= 250)
    assert trace.stopped
    assert trace.step.tolist() == [0, 100, 200, 250]
    np.testing.assert_allclose(trace.W[:, -1], train(DATA, V, steps=250).W[:, -1])


def test_slow_steps_ask_the_callback_more_often(monkeypatch):
    """A step of a tenth of a second is asked after every five, not after every hundredth of the run."""
    clock = [0.0]
    advance = RangeWatch.advance

    def slowly(self, first, stop):
        clock[0] += 0.1 * (stop - first)
        advance(self, first, stop)

    monkeypatch.setattr(RangeWatch, "advance", slowly)
    monkeypatch.setattr(recording.time, "perf_counter", lambda: clock[0])
    calls = []
    options = {"steps": 2000, "record_every": [1, 2000]}
    trace = train(DATA, V, callback=lambda step, steps: calls.append(step), **options)
    assert max(np.diff(calls)) <= 5
    np.testing.assert_array_equal(trace.W, train(DATA, V, **options).W)
    stopped = train(DATA, V, callback=lambda step, steps: step >= 33, **options)
    assert 33 <= stopped.step[-1] <= 38
    assert stopped.stopped


def test_trials_are_shared_out_among_threads_without_a_trace():
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for options in ({}, {"optimizer": "momentum"}, {"parameterization": "KQ", "rank": 2}):
            two = train(DATA, V, steps=40, backend="compiled", **options)
            torch.set_num_threads(1)
            one = train(DATA, V, steps=40, backend="compiled", **options)
            torch.set_num_threads(2)
            np.testing.assert_array_equal(one.W, two.W)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("relative", [False, True])
def test_factors_normalised_apart_are_compiled(relative):
    rule = SeparatelyNormalizedGD(0.1, relative=relative)
    options = {"optimizer": rule, "parameterization": "KQ", "init": "torch", "steps": 20}
    compiled, plain = (train(DATA, V, backend=backend, **options) for backend in ("auto", "torch"))
    assert compiled.backend == "compiled"
    # Sums in another order; 20 short steps magnify their rounding by far less than 1e4.
    np.testing.assert_allclose(compiled.K, plain.K, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(compiled.Q, plain.Q, rtol=1e-10, atol=1e-12)


def test_the_compiled_loop_is_chosen_where_it_can_serve():
    assert train(DATA, V, steps=1).backend == "compiled"
    assert train(DATA, V, steps=1, backend="torch").backend == "torch"
    for options in ({"numerics": "autograd"}, {"loss": lambda u: torch.exp(-u)}, {"dtype": "float32"}):
        assert train(DATA, V, steps=1, **options).backend == "torch"
        with pytest.raises(ValueError, match="backend is 'compiled'"):
            train(DATA, V, steps=1, backend="compiled", **options)


@pytest.mark.slow
def test_float32_exact_gradients_keep_the_direction_where_autograd_loses_it():
    # float32 autograd is blind past margin 16, which 3000 steps of 0.1 pass many times over.
    reference = train(DATA, V, steps=3000)
    exact = train(DATA, V, steps=3000, dtype="float32")
    plain = train(DATA, V, steps=3000, dtype="float32", numerics="autograd")
    near, far = (correlation(t.W[:, -1].astype(float), reference.W[:, -1]) for t in (exact, plain))
    # W is a sum of 3000 steps, each rounded to eps of W: a share 3000 eps of it at most, whose square the cosine loses;
    # logits off by that share of a margin of 100 turn single gradients, but the next ones turn back.
    assert (1 - near <= (3000 * np.finfo(np.float32).eps) ** 2 * 100**2).all()
    assert (far < near).all()
    assert (plain.norm[:, -1] < exact.norm[:, -1]).all()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"parameterization": "V"}, "parameterization is 'V'"),
        ({"optimizer": "magic"}, "optimizer is 'magic'"),
        ({"optimizer": 3}, "optimizer has type int"),
        ({"optimizer": "separately_normalized_gd"}, "does not train parameterization='W': there is one matrix"),
        ({"optimizer": "momentum", "parameterization": "KQ"}, "does not train parameterization='KQ': it accelerates"),
        ({"optimizer": "mirror", "parameterization": "KQ"}, "does not train parameterization='KQ': its potential"),
        ({"loss": "hinge"}, "loss is 'hinge'"),
        ({"loss": 3}, "loss has type int"),
        ({"loss": lambda u: u.sum()}, "elementwise"),
        ({"steps": -1}, "steps is -1"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"lr": 0.0}, "lr is 0.0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"lr": float("inf")}, "lr is inf"),
        ({"lr": "fast"}, "lr is 'fast'"),
        ({"schedule": 3}, "schedule has type int"),
        ({"callback": 3}, "callback has type int"),
        ({"init": object()}, "init W has"),
        ({"init": [[1, 2], [3]]}, "init W has"),
        ({"schedule": "cosine"}, "schedule is 'cosine'"),
        ({"schedule": lambda k: -k}, "schedule returned"),
        ({"init": "ones"}, "init is 'ones'"),
        ({"init": np.ones((6, 5))}, r"init W has shape \(6, 5\)"),
        ({"init": np.full((6, 6), np.nan)}, "contains NaN"),
        ({"rank": 2}, "rank is 2"),
        ({"parameterization": "KQ", "rank": 0}, "rank is 0"),
        ({"parameterization": "KQ", "rank": True}, "rank is True"),
        ({"parameterization": "KQ", "init": "zero"}, "stationary point"),
        ({"parameterization": "KQ", "init": np.ones((6, 6))}, "pair"),
        ({"parameterization": "KQ", "init": (np.ones((6, 2)), np.ones((6, 3)))}, "same width"),
        ({"parameterization": "KQ", "init": (np.ones((5, 2)), np.ones((6, 2)))}, r"K has shape \(5, 2\); \(6, m\) was"),
        (
            {"parameterization": "KQ", "rank": 3, "init": (np.ones((6, 3)), np.ones((6, 2)))},
            r"Q has shape \(6, 2\); \(6, 3\) was",
        ),
        ({"record_every": 0}, "record_every is 0"),
        ({"record_every": [9]}, "record_every has shape"),
        ({"seed": -1, "init": "torch"}, "seed has shape"),
        ({"dtype": "int32"}, "dtype is 'int32'"),
        ({"numerics": "fuzzy"}, "numerics is 'fuzzy'"),
        ({"backend": "gpu"}, "backend is 'gpu'"),
    ],
)
def test_bad_arguments_are_named(options, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        train(DATA, V, **{"steps": 2, **options})
    assert "\n" not in str(error.value)


def test_data_and_head_must_fit():
    with pytest.raises(ValueError, match="data has type"):
        train((DATA.tokens,), V)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"head v has shape \(2, 6\)"):
        train(DATA, V[:2])
    with pytest.raises(ValueError, match="head has type"):
        train(DATA, {"v": 1})
