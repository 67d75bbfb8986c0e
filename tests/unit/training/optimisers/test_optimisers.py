"""Optimisers: ours against torch's and against plain loops, any torch optimiser, and where each must stop."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.special import expit

from attsvm import TokenData, train
from attsvm.data.synthetic import random_data, random_trial
from attsvm.nn.heads import ValueHead
from attsvm.training import OPTIMIZERS, Vocabulary
from attsvm.training.optimisers import flow
from attsvm.training.optimisers.adaptive import Adam, AdamW
from attsvm.training.optimisers.descent import Entry, GradientDescent
from attsvm.training.optimisers.flow import GradientFlow
from attsvm.training.optimisers.moments import ScaledMean
from attsvm.training.optimisers.momentum import QUINTIC, CompositionalMuon, Lion, Muon, Signum, newton_schulz
from attsvm.training.optimisers.preconditioned import SOAP, Shampoo
from attsvm.training.optimisers.schedule import step_sizes
from attsvm.training.optimisers.steepest import (
    AxisDescent,
    CoordinateDescent,
    MirrorDescent,
    SignDescent,
    SpectralDescent,
    numbers_only,
    polar_factor,
)
from attsvm.training.risk.objective import Objective
from attsvm.training.run.foreign import keeps_squares
from attsvm.training.run.limits import Ending, notice, out_of_range

DATA, V = random_data(2, 4, 5, 5, gap=0.05, seed=3)
ONE, HEAD = DATA[0], V[0]
STEPS = 20
# Normalised steps expand a rounding error by about 1 + eta * curvature a step: 1e-16 stays below this in 20 steps.
CLOSE = {"rtol": 0, "atol": 1e-10}


def gradient(W):
    """The gradient of the risk on ONE, by autograd through plain softmax, while nothing is saturated."""
    W = torch.as_tensor(W).clone().requires_grad_()
    tokens, queries = torch.as_tensor(ONE.tokens), torch.as_tensor(ONE.queries)
    attention = torch.softmax(torch.einsum("ntd,de,ne->nt", tokens, W, queries), -1)
    outputs = torch.einsum("nt,ntd->nd", attention, tokens) @ torch.as_tensor(HEAD)
    torch.nn.functional.softplus(-torch.as_tensor(ONE.labels) * outputs).mean().backward()
    return W.grad


def loop(update, steps=STEPS):
    """Run a plain loop W <- W - update(G, k)."""
    W = torch.zeros(5, 5, dtype=torch.float64)
    for k in range(1, steps + 1):
        W = W - update(gradient(W), k)
    return W.numpy()


def fourth_root(matrix):
    values, vectors = torch.linalg.eigh(matrix)
    usable = values > 5 * torch.finfo(values.dtype).eps * values[-1]
    return (vectors[:, usable] * values[usable] ** -0.25) @ vectors[:, usable].T


def plain_average(beta, direction):
    """Steps along a function of the gradient, its average before and its average now."""
    average = torch.zeros(5, 5, dtype=torch.float64)

    def update(G, k):
        nonlocal average
        before, average = average, beta * average + (1 - beta) * G
        return 0.1 / k**0.5 * direction(G, before, average)

    return update


def plain_shampoo(beta):
    L = R = torch.zeros(5, 5, dtype=torch.float64)

    def update(G, k):
        nonlocal L, R
        weight = 1 if beta == 1 else (1 - beta)
        L, R = beta * L + weight * G @ G.T, beta * R + weight * G.T @ G
        correction = 1 if beta == 1 else 1 - beta**k
        return 0.1 / k**0.5 * fourth_root(L / correction) @ G @ fourth_root(R / correction)

    return update


def plain_soap():
    L = R = first = second = torch.zeros(5, 5, dtype=torch.float64)
    bases = None

    def update(G, k):
        nonlocal L, R, first, second, bases
        L, R = 0.95 * L + 0.05 * G @ G.T, 0.95 * R + 0.05 * G.T @ G
        if (k - 1) % 10 == 0:
            bases = torch.linalg.eigh(L).eigenvectors, torch.linalg.eigh(R).eigenvectors
        U, Y = bases
        first = 0.95 * first + 0.05 * G
        second = 0.95 * second + 0.05 * (U.T @ G @ Y) ** 2
        root = (second / (1 - 0.95**k)).sqrt()
        return 0.1 / k**0.5 * U @ ((U.T @ first @ Y) / (1 - 0.95**k) / (root + 1e-4 * root.max())) @ Y.T

    return update


@pytest.mark.parametrize(
    ("rule", "update"),
    [
        (Signum(0.1), plain_average(0.9, lambda G, before, average: average.sign())),
        (Lion(0.1), plain_average(0.99, lambda G, before, average: (0.9 * before + 0.1 * G).sign())),
        (Muon(0.1), plain_average(0.95, lambda G, before, average: polar_factor(0.95 * average + 0.05 * G))),
        (Shampoo(0.1), plain_shampoo(0.95)),
        (Shampoo(0.1, beta=1.0), plain_shampoo(1.0)),
        # A floor of 1e-4 instead of 1e-8 keeps the rounding of small entries, divided by it, below 1e-10 in 20 steps.
        (SOAP(0.1, eps=1e-4), plain_soap()),
        (AxisDescent(0.1), lambda G, k: 0.1 * G / G.norm(dim=1, keepdim=True)),
        (AxisDescent(0.1, axis="columns"), lambda G, k: 0.1 * G / G.norm(dim=0, keepdim=True)),
        (CoordinateDescent(0.1), lambda G, k: 0.1 * G.sign() * (G.abs() == G.abs().max())),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_rule_is_its_plain_loop(rule, update):
    np.testing.assert_allclose(train(ONE, HEAD, optimizer=rule, steps=STEPS).W[-1], loop(update), **CLOSE)


@pytest.mark.parametrize("p", [1.5, 3.0])
@pytest.mark.parametrize("backend", ["torch", "compiled"])
def test_mirror_descent_goes_on_from_the_image_of_its_start(p: float, backend: Any) -> None:
    W = torch.tensor(np.random.default_rng(8).standard_normal((5, 5)))
    trace = train(ONE, HEAD, optimizer=MirrorDescent(0.1, p=p), init=W.numpy(), steps=5, backend=backend)
    for _ in range(5):
        G = gradient(W)
        assert G is not None
        image = W.sign() * W.abs() ** (p - 1) - 0.1 * G / (G.abs() ** (p / (p - 1))).sum() ** (1 - 1 / p)
        W = image.sign() * image.abs() ** (1 / (p - 1))
    np.testing.assert_allclose(trace.W[-1], W.numpy(), **CLOSE)


def adamw(params):
    return torch.optim.AdamW(params, lr=0.05, eps=0, weight_decay=0.1)


@pytest.mark.parametrize(
    ("rule", "factory"),
    [
        (Adam(0.05, eps=1e-3), lambda params: torch.optim.Adam(params, lr=0.05, eps=1e-3)),
        (AdamW(0.05, "constant", weight_decay=0.1), adamw),
        (AdamW(0.05, weight_decay=0.1), adamw),
        ("gd", lambda params: torch.optim.SGD(params, lr=1.0)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("parameterization", ["W", "KQ"])
def test_ours_and_torchs_are_the_same(rule, factory, parameterization):
    schedule = rule.schedule if isinstance(rule, AdamW) else None
    # Where a gradient is zero, as that of K at Q = 0, torch's Adam with eps = 0 divides zero by zero.
    options = {"steps": STEPS, "parameterization": parameterization, "init": "torch"}
    ours = train(DATA, V, optimizer=rule, backend="torch", **options)
    theirs = train(DATA, V, optimizer=factory, schedule=schedule, **options)
    np.testing.assert_allclose(ours.W, theirs.W, **CLOSE)
    assert theirs.optimizer in ("Adam", "AdamW", "SGD")
    assert not theirs.notice


def test_newton_schulz_muon_is_torchs_to_the_precision_of_theirs():
    """Torch's runs in bfloat16: a rounding of 2^-9 grows 3.4 times a step until a singular value is of size one."""
    rule = Muon(0.1, "constant", orthogonalization="newton-schulz")
    ours = train(ONE, HEAD, optimizer=rule, steps=1).W[-1]
    theirs = train(ONE, HEAD, optimizer=lambda p: torch.optim.Muon(p, lr=0.1, weight_decay=0.0), steps=1).W[-1]
    np.testing.assert_allclose(ours, theirs, atol=0.1 * 2**-9 * 3.4445**3)


@pytest.mark.parametrize("parameterization", ["W", "KQ"])
def test_an_optimiser_that_evaluates_the_risk_does_so_at_its_parameters(parameterization: Any) -> None:
    """L-BFGS with a line search asks for value and gradient at points of its own."""
    rng = np.random.default_rng(9)
    start = [torch.tensor(rng.standard_normal((5, width))) for width in ([5] if parameterization == "W" else [2, 2])]
    init = start[0].numpy() if parameterization == "W" else tuple(part.numpy() for part in start)

    def factory(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(params, lr=0.5, max_iter=4, line_search_fn="strong_wolfe")

    trace = train(ONE, HEAD, optimizer=factory, parameterization=parameterization, init=init, steps=2)
    params = [torch.nn.Parameter(part.clone()) for part in start]
    optimizer: Any = factory(params)
    x, z = torch.as_tensor(ONE.tokens), torch.as_tensor(ONE.queries)

    def risk() -> torch.Tensor:
        W = params[0] if len(params) == 1 else params[0] @ params[1].mT
        attention = torch.softmax(torch.einsum("ntd,de,ne->nt", x, W, z), -1)
        margins = torch.as_tensor(ONE.labels) * torch.einsum("nt,ntd,d->n", attention, x, torch.as_tensor(HEAD))
        value = torch.nn.functional.softplus(-margins).mean()
        optimizer.zero_grad()
        value.backward()
        return value

    for _ in range(2):
        optimizer.step(risk)
    W = params[0] if len(params) == 1 else params[0] @ params[1].mT
    np.testing.assert_allclose(trace.W[-1], W.detach().numpy(), **CLOSE)


@pytest.mark.parametrize("make", [torch.optim.Adafactor, torch.optim.LBFGS, torch.optim.RMSprop, torch.optim.Muon])
@pytest.mark.slow
def test_any_torch_optimiser_lowers_the_risk(make):
    trace = train(DATA, V, optimizer=lambda params: make(params, lr=0.05), steps=STEPS)
    assert (trace.loss[:, -1] < trace.loss[:, 0]).all()
    assert trace.optimizer == make.__name__
    other_trace = train(DATA[1], V[1], optimizer=lambda params: make(params, lr=0.05), steps=STEPS)
    np.testing.assert_allclose(trace.W[1], other_trace.W, **CLOSE)


def test_a_squared_gradient_that_underflows_ends_the_trial_in_a_sentence():
    """One sequence of two tokens: the gradient is e^-m times a constant c; its square is zero from m = 51.6 + log c."""
    data = TokenData(np.array([[[1.0], [0.0]]]), np.ones((1, 1)), [1.0])
    trace = train(
        data, [1.0], optimizer=lambda p: torch.optim.Adam(p, lr=0.05, eps=0), steps=2000, dtype="float32",
        init=[[45.0]],
    )  # fmt: skip
    # d/dW log(1 + e^-s) = -sigmoid(-s) s (1 - s) with s = 1 up to e^-m: c = 1/(1 + e).
    vanishing = -np.log(np.sqrt(2.0**-150) * (1 + np.e))
    assert "1 of 1 trial ended early: the squared gradient that Adam keeps underflows in float32" in trace.notice
    assert trace.last_step < 2000
    assert vanishing <= trace.W[-1, 0, 0] <= vanishing + 0.1  # two steps of 0.05
    plain = train(data, [1.0], optimizer=lambda p: torch.optim.SGD(p, lr=0.05), steps=5, dtype="float32", init=[[20.0]])
    assert "the steps of SGD no longer change the parameters in float32" in plain.notice
    assert plain.last_step == 0
    assert "ended early" in repr(plain)
    end = train(data, [1.0], optimizer=lambda p: torch.optim.SGD(p, lr=0.05), steps=5, dtype="float32", init=[[120.0]])
    assert "the gradient underflows in float32" in end.notice


class OneRate(torch.optim.Optimizer):
    """Divides the gradient by the root of its running squared length, one number per matrix."""

    def __init__(self, params: list[torch.nn.Parameter]) -> None:
        super().__init__(params, {})

    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        for param in self.param_groups[0]["params"]:
            state = self.state[param]
            state["started"] = torch.tensor(True)
            state["square"] = 0.9 * state.get("square", 0.0) + 0.1 * param.grad.square().sum()
            param.data -= 0.1 * param.grad / state["square"].sqrt()


def test_a_squared_length_is_a_squared_gradient() -> None:
    data = TokenData(np.array([[[1.0], [0.0]]]), np.ones((1, 1)), [1.0])
    trace = train(data, [1.0], optimizer=OneRate, steps=5, dtype="float32", init=[[60.0]])
    assert "the squared gradient that OneRate keeps underflows in float32" in trace.notice
    matrices = [torch.zeros(2, 3)]
    assert keeps_squares(OneRate, matrices)
    assert keeps_squares(torch.optim.Adam, matrices)
    assert not keeps_squares(lambda params: torch.optim.SGD(params, lr=1.0, momentum=0.9), matrices)


@pytest.mark.parametrize("backend", ["torch", "compiled"])
def test_a_trial_that_overflows_says_so_and_keeps_its_last_finite_iterate(backend):
    # Relative steps multiply |(K, Q)| by up to 1 + lr each: with lr = 5, K Q^T passes 1e154 within a few hundred.
    options = {
        "optimizer": "normalized_gd", "schedule": "constant", "parameterization": "KQ", "backend": backend, "lr": 5.0,
    }  # fmt: skip
    trace = train(DATA, V, steps=300, record_every=100, **options)
    assert "2 of 2 trials ended early: the parameters left the range of float64" in trace.notice
    assert np.isfinite(trace.W).all()
    assert (trace.last_step < 300).all()
    for b, last in enumerate(trace.last_step):
        before = train(DATA[b], V[b], steps=int(last), **options, init=(trace.K[b, 0], trace.Q[b, 0]))
        assert not before.notice
        np.testing.assert_allclose(trace.W[b, -1], before.W[-1], rtol=1e-6)
        after = train(DATA[b], V[b], steps=int(last) + 1, **options, init=(trace.K[b, 0], trace.Q[b, 0]))
        assert after.last_step == last


def test_the_range_ends_where_the_sum_of_squares_overflows() -> None:
    """Sixteen equal entries e have squares that sum to 16 e^2."""
    top = np.sqrt(np.finfo(float).max)
    entries = torch.tensor([top / 3, top / 5, -top / 3, np.nan]).double()
    assert out_of_range([entries[:, None, None].expand(4, 4, 4)]).tolist() == [True, False, True, True]


def test_the_range_ends_where_the_product_of_factors_overflows() -> None:
    """Entries are 2 k q, and four of them have squares that sum to 16 (k q)^2."""
    numbers = torch.tensor([[1e100, 1e50, 1e100, 1e50], [1e50, 1e100, 1e60, 1e60]], dtype=torch.float64)
    factors = [one[:, None, None].expand(4, 2, 2) for one in numbers]
    assert out_of_range(factors).tolist() == [False, False, True, False]


def test_the_notice_names_the_first_of_several_ends() -> None:
    ends = {0: Ending(7, "reason"), 2: Ending(3, "reason"), 3: Ending(1, "other")}
    first, second = notice(ends, 4).split(" the last finite iterate is kept.")[:2]
    assert first == "2 of 4 trials ended early: reason, after 3 steps at first;"
    assert second == " 1 of 4 trials ended early: other, after 1 step;"


@pytest.mark.slow
def test_rules_of_all_scales_end_finite():
    """Every rule, schedule and parameterisation from two starts: nothing but finite numbers, or a notice."""
    for name, entry in OPTIMIZERS.items():
        for parameterization, make in (("W", entry.W), ("KQ", entry.KQ)):
            for schedule in ("constant", "exponential") if callable(make) and name != "flow" else ():
                trace = train(
                    ONE, HEAD, optimizer=name, parameterization=parameterization, schedule=schedule, steps=60, lr=5.0,
                    init="torch", backend="torch",
                )  # fmt: skip
                assert np.isfinite(trace.W).all(), (name, parameterization, schedule)
                assert (trace.last_step == 60) == (not trace.notice)


def test_means_of_vanishing_gradients_are_the_true_means():
    mean, exact = ScaledMean(torch.zeros(1, 2, dtype=torch.float64)), []
    terms = [(torch.tensor([[1.0, -3.0]], dtype=torch.float64) * (-1) ** k, -400.0 * k) for k in range(6)]
    for value, log in terms:
        mean.update(0.5, 0.5, value, torch.tensor([log], dtype=torch.float64))
    from fractions import Fraction

    import mpmath as mp

    mp.mp.dps = 50
    for j in range(2):
        exact.append(sum(mp.mpf(0.5) ** (6 - k) * float(v[0, j]) * mp.exp(log) for k, (v, log) in enumerate(terms)))
    for j in range(2):
        ratio = mp.mpf(float(mean.mantissa[0, j])) * mp.exp(float(mean.log[0])) / exact[j]
        assert abs(ratio - 1) < 1e-12
    assert Fraction(1, 2) <= Fraction(float(mean.mantissa.abs().max())) < 1


def test_a_matrix_with_one_bad_entry_is_replaced_and_the_others_stay() -> None:
    good, bad = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[1.0, torch.inf], [3.0, 4.0]])
    matrices, nonfinite = numbers_only(torch.stack([good, bad, good]))
    assert torch.equal(matrices, torch.stack([good, torch.zeros(2, 2), good]))
    assert nonfinite.isnan().flatten().tolist() == [False, True, False]
    assert nonfinite[0] == 0
    assert polar_factor(torch.stack([good, bad])).isnan().flatten(1).all(-1).tolist() == [False, True]


DUALS = {
    SignDescent: lambda G: np.abs(G).sum(),
    SpectralDescent: lambda G: np.linalg.svd(G, compute_uv=False).sum(),
    CoordinateDescent: lambda G: np.abs(G).max(),
    AxisDescent: lambda G: np.linalg.norm(G, axis=1).sum(),
}
NORMS = {
    SignDescent: lambda S: np.abs(S).max(),
    SpectralDescent: lambda S: np.linalg.norm(S, 2),
    CoordinateDescent: lambda S: np.abs(S).sum(),
    AxisDescent: lambda S: np.linalg.norm(S, axis=1).max(),
}


@pytest.mark.parametrize("rule", DUALS)
def test_first_steps_are_steepest_in_their_norm(rule):
    step = -train(ONE, HEAD, optimizer=rule(1.0), steps=1).W[-1]
    G = gradient(np.zeros((5, 5))).numpy()
    assert NORMS[rule](step) == pytest.approx(1, abs=1e-12)
    assert (step * G).sum() == pytest.approx(DUALS[rule](G), rel=1e-12)


def test_first_steps_of_muon_shampoo_and_soap_are_polar():
    G = gradient(np.zeros((5, 5)))
    for rule in (Muon(1.0), Shampoo(1.0), Shampoo(1.0, beta=1.0)):
        step = -train(ONE, HEAD, optimizer=rule, steps=1).W[-1]
        # Four sequences: a gradient of rank 4, whose fifth singular value is rounding.
        np.testing.assert_allclose(step, polar_factor(G[None])[0].numpy(), atol=1e-6)
    values = np.linalg.svd(newton_schulz(torch.randn(3, 6, 4, dtype=torch.float64)).numpy(), compute_uv=False)
    assert ((values > 0.6) & (values < 1.3)).all()


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (2, 3, 6, 4)])
def test_newton_schulz_applies_a_polynomial_to_singular_values(shape: tuple[int, ...]) -> None:
    matrix = torch.tensor(np.random.default_rng(0).standard_normal(shape))
    U, values, Vh = torch.linalg.svd(matrix, full_matrices=False)
    values = values / values.norm(dim=-1, keepdim=True)
    a, b, c = QUINTIC
    for _ in range(5):
        values = a * values + b * values**3 + c * values**5
    torch.testing.assert_close(newton_schulz(matrix), (U * values.unsqueeze(-2)) @ Vh, rtol=0, atol=1e-12)


def test_shampoo_takes_no_step_along_an_eigenvalue_below_rounding() -> None:
    """The gradient is a multiple of diag(1, s), its squares of diag(1, s^2); two times eps of the first is rounding."""
    for square, along in ((1.0, 0.0), (4.0, 1.0)):
        s = np.sqrt(square * np.finfo(float).eps)
        tokens = np.array([[[1.0, 0.0], [0.0, 0.0]], [[0.0, s], [0.0, 0.0]]])
        values = np.array([[[1.0], [0.0]]] * 2)
        data = TokenData(tokens, np.eye(2), np.ones(2), values=values)
        step = train(data, [1.0], optimizer=Shampoo(1.0), steps=1).W[-1]
        np.testing.assert_allclose(step, np.diag([1.0, along]), atol=1e-6)
        # Rounding does not grow with the number of trials.
        rows, queries, labels, many = (np.stack([part] * 9) for part in (tokens, np.eye(2), np.ones(2), values))
        trials = TokenData(rows, queries, labels, values=many)
        steps = train(trials, [1.0], optimizer=Shampoo(1.0), steps=1).W[:, -1]
        np.testing.assert_allclose(steps, np.stack([np.diag([1.0, along])] * 9), atol=1e-6)


def test_compositional_muon_moves_the_product_like_spectral_descent():
    rng = np.random.default_rng(0)
    K, Q = rng.standard_normal((2, 5, 5)) + 3 * np.eye(5)
    eta = 1e-5
    rule = CompositionalMuon(eta, "constant", momentum=0.0)
    trace = train(ONE, HEAD, optimizer=rule, parameterization="KQ", init=(K, Q), steps=1)
    step = (trace.W[-1] - trace.W[0]) / -eta
    # Factors of full rank whiten each other: the product moves by the polar factor, up to second order in eta and the
    # damping of 1e-8 relative to Gram eigenvalues above 0.1.
    np.testing.assert_allclose(step, polar_factor(gradient(K @ Q.T)[None])[0].numpy(), atol=1e-3)


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in ("gd", "normalized_gd")])
def test_a_batch_equals_a_loop_in_every_rule(name):
    for parameterization, make in (("W", OPTIMIZERS[name].W), ("KQ", OPTIMIZERS[name].KQ)):
        if callable(make):
            options = {"optimizer": name, "parameterization": parameterization, "steps": STEPS}
            batch = train(DATA, V, seed=[4, 5], **options)
            for j in range(2):
                trace = train(DATA[j], V[j], seed=4 + j, **options)
                # Entries below the floor of SOAP's quotient are rounding, amplified up to 1e8 times. With
                # Polyak's steps W grows, and its rounding is relative to its largest entry.
                size = max(1.0, float(np.abs(trace.W).max()))
                np.testing.assert_allclose(batch.W[j], trace.W, rtol=0, atol=size * (1e-5 if name == "soap" else 1e-9))


def test_gradient_flow_is_the_flow_and_trials_have_steps_of_their_own() -> None:
    """Trials of one sequence with tokens x and 0: dw/dtau = e^tau sigmoid(-p) p (1 - p) x at p = sigmoid(w x)."""
    # A first step of the whole rate saturates attention for the longer tokens.
    lengths, end = np.array([1.0, 30.0, 1000.0]), 3.0
    tokens = np.zeros((3, 1, 2, 1))
    tokens[:, 0, 0, 0] = lengths
    values = np.array([[[[1.0], [0.0]]]] * 3)
    data = TokenData(tokens, np.ones((3, 1, 1)), np.ones((3, 1)), values=values)
    trace = train(data, [1.0], optimizer=GradientFlow(0.5), steps=6)

    def slope(tau, w):
        p = expit(w * lengths)
        return np.exp(tau) * expit(-p) * p * (1 - p) * lengths

    exact = solve_ivp(slope, (0.0, end), np.zeros(3), "LSODA", rtol=1e-10, atol=1e-12).y[:, -1]
    # Each part errs by 1e-7 of one, and there are less than a hundred.
    np.testing.assert_allclose(trace.W[:, -1, 0, 0], exact, rtol=0, atol=1e-5)


def one_sequence(lengths: np.ndarray) -> TokenData:
    """Trials of one sequence with tokens x and 0, of which the first has the higher score."""
    trials = len(lengths)
    tokens, values = np.zeros((trials, 1, 2, 1)), np.array([[[[1.0], [0.0]]]] * trials)
    tokens[:, 0, 0, 0] = lengths
    return TokenData(tokens, np.ones((trials, 1, 1)), np.ones((trials, 1)), values=values)


def test_a_part_of_gradient_flow_is_kept_up_to_its_largest_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is 1e-7 of the larger of one and |W|, and is taken to fall with the fourth power of the length."""
    parts: list[tuple[torch.Tensor, ...]] = []
    part_of = flow._part

    def recorded(params: Any, slopes: Any, objective: Any, tau: Any, part: torch.Tensor) -> Any:
        ends, fourth, fifth = part_of(params, slopes, objective, tau, part)
        error = part * (fifth[0] - fourth[0]).abs().flatten() / 6
        parts.append((params[0].flatten().clone(), part, ends[0].flatten(), error))
        return ends, fourth, fifth

    monkeypatch.setattr(flow, "_part", recorded)
    train(one_sequence(np.geomspace(1, 1000, 12)), [1.0], optimizer=GradientFlow(0.5), steps=6)
    starts, lengths, ends, errors = (torch.stack(one)[:-1] for one in zip(*parts, strict=True))
    share = errors / (1e-7 * starts.abs().clamp(min=1.0))
    assert ((share > 1) & (share <= 2)).any()
    assert torch.equal(torch.stack([one[0] for one in parts])[1:], torch.where(share <= 1, ends, starts))
    following = torch.stack([one[1] for one in parts])[1:]
    shorter = lengths * (0.9 * share**-0.25).clamp(min=0.2)
    torch.testing.assert_close(following[share > 1], shorter[share > 1], rtol=1e-12, atol=0)


def test_a_step_of_gradient_flow_with_too_many_parts_ends_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts grow at most four times, from 1e-9 of a step: fifteen make up a step, and eight do not."""
    for most, ends in ((20, False), (8, True)):
        monkeypatch.setattr(flow, "_PARTS", most)
        trace = train(one_sequence(np.ones(1))[0], [1.0], optimizer=GradientFlow(0.01), steps=2)
        assert ("a step of gradient flow takes more than 8 parts" in trace.notice) == ends
        assert trace.last_step == (0 if ends else 2)


@pytest.mark.slow
def test_gradient_flow_keeps_the_balance_and_the_risk_falls_like_one_over_time():
    trace = train(
        DATA, V, optimizer=GradientFlow(0.02), parameterization="KQ", init="aligned", steps=500, record_every=250
    )
    # Runge-Kutta of order four: local errors of 0.02^5, five hundred of them, on matrices of size ten.
    assert np.abs(trace.imbalance).max() < 500 * 0.02**5 * 10
    coarse = train(DATA, V, optimizer=GradientFlow(0.04), parameterization="KQ", init="aligned", steps=250)
    assert np.abs(coarse.W[:, -1] - trace.W[:, -1]).max() < 1e-3 * np.abs(trace.W[:, -1]).max()
    # On W the sphere of radius |W| grows like log t over the margin: tau doubles, and so does the norm, roughly.
    W = train(DATA, V, optimizer="flow", steps=1000, record_every=500)
    assert ((W.norm[:, 2] / W.norm[:, 1] > 1.5) & (W.norm[:, 2] / W.norm[:, 1] < 2.5)).all()
    with pytest.raises(ValueError, match="optimizer 'flow' has schedule='sqrt'"):
        train(DATA, V, optimizer="flow", schedule="sqrt", steps=1)


@pytest.mark.slow
def test_gradient_flow_cuts_its_steps_where_tokens_change_late():
    # Of these trials one leaves a token for another near tau = 12, within exp(-12) of tau; equal steps of 0.1 multiply
    # the imbalance by 1e6 there.
    rng = np.random.default_rng(0)
    trials = [random_trial(np.random.default_rng(seed), 4, 5, 6) for seed in range(8)]
    tokens, queries, labels, v = (np.stack(parts) for parts in zip(*trials, strict=True))
    data = TokenData(tokens, queries, labels)
    K, Q = 0.1 * rng.standard_normal((2, 6, 6))
    options = {"optimizer": "flow", "parameterization": "KQ", "loss": "exponential", "lr": 0.1, "init": (K, Q)}
    trace = train(data, v, steps=150, **options)
    # 150 steps of at most ten parts each, whose error is 1e-7 of norms of about ten.
    assert np.abs(trace.imbalance[:, 1] - trace.imbalance[:, 0]).max() < 1e-3
    # A trial's parts are its own.
    other_trace = train(data[5], v[5], steps=150, **options)
    np.testing.assert_allclose(other_trace.W[-1], trace.W[5, -1], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_gradient_flow_ends_where_a_step_takes_too_many_parts():
    """A risk with a minimiser: near it parts shrink like exp(-tau), and a step of 100 would take exp(100) of them."""

    def trial(seed: int) -> tuple[np.ndarray, ...]:
        rng = np.random.default_rng(seed)
        tokens, queries = rng.normal(size=(8, 4, 3)), rng.normal(size=(8, 3))
        return tokens, queries, rng.choice([-1.0, 1.0], 8), rng.normal(size=3)

    tokens, queries, labels, v = (np.stack(parts) for parts in zip(trial(0), trial(1), strict=True))
    data = TokenData(tokens, queries, labels)
    options = {"optimizer": "flow", "lr": 10.0, "steps": 3, "record_every": 1}
    trace = train(data, v, **options)
    assert "1 of 2 trials ended early: a step of gradient flow takes more than 500 parts" in trace.notice
    last = int(trace.last_step[1])
    assert trace.last_step[0] == 3
    assert last < 3
    assert np.isfinite(trace.W).all()
    # Steps before the end are kept, and the trial stays where it is.
    assert (trace.W[1, last:] == trace.W[1, last]).all()
    # The other trial is where it is alone, up to parts with an error of 1e-7 each, 500 of them a step.
    alone = train(data[0], v[0], **options)
    assert not alone.notice
    np.testing.assert_allclose(trace.W[0], alone.W, rtol=0, atol=1500 * 1e-7 * np.abs(alone.W).max())


def test_decay_shrinks_the_imbalance_at_its_rate():
    """d/dt (K^T K - Q^T Q) = -2 lambda (K^T K - Q^T Q) under gradient flow with decay lambda; steps add O(lr)."""
    lr, decay, steps = 0.01, 0.5, 400
    trace = train(DATA, V, optimizer="gd", lr=lr, weight_decay=decay, parameterization="KQ", init="torch", steps=steps)
    assert trace.backend == "torch"
    factor = np.exp(-2 * lr * decay * steps)
    np.testing.assert_allclose(trace.imbalance[:, -1], factor * trace.imbalance[:, 0], atol=5 * lr)
    with pytest.raises(ValueError, match="parameterization was 'W'"):
        _ = train(DATA, V, steps=1).imbalance
    plain = loop(lambda G, k: 0.5 * G)
    W = np.zeros((5, 5))
    for _ in range(STEPS):
        W = W * (1 - 0.5 * 0.1) - 0.5 * gradient(W).numpy()
    np.testing.assert_allclose(
        train(ONE, HEAD, optimizer="gd", lr=0.5, weight_decay=0.1, steps=STEPS).W[-1], W, **CLOSE
    )
    assert np.linalg.norm(W) < np.linalg.norm(plain)


@pytest.mark.parametrize("optimizer", ["normalized_gd", "adam", "polyak", "gd"])
def test_weights_are_repetitions(optimizer):
    counts = np.array([1, 3, 2, 1])
    index = np.repeat(np.arange(4), counts)
    repetition = TokenData(ONE.tokens[index], ONE.queries[index], ONE.labels[index])
    options = {"optimizer": optimizer, "steps": 30, "backend": "torch", "record_every": 10}
    weighted = train(ONE, HEAD, sample_weight=counts, **options)
    plain = train(repetition, HEAD, **options)
    np.testing.assert_allclose(weighted.W, plain.W, **CLOSE)
    np.testing.assert_allclose(weighted.loss, plain.loss, **CLOSE)
    zero = train(ONE, HEAD, sample_weight=[1.0, 0, 1, 0], **options)
    subset = train(TokenData(ONE.tokens[::2], ONE.queries[::2], ONE.labels[::2]), HEAD, **options)
    np.testing.assert_allclose(zero.W, subset.W, **CLOSE)


@pytest.mark.parametrize("batch", [(), (2,), (2, 1)], ids=str)
def test_every_trial_may_have_weights_of_its_own(batch: tuple[int, ...]) -> None:
    data, v = random_data(2, 4, 5, 5, gap=0.05, seed=3)
    trials = 2 if batch else 1
    weights = np.random.default_rng(0).uniform(0.5, 2.0, (trials, 4))
    arrays = (data.tokens, data.queries, data.labels, v, weights)
    *parts, heads, own = (array[:trials].reshape(*batch, *array.shape[1:]) for array in arrays)
    trace = train(TokenData(*parts), heads, sample_weight=own, steps=STEPS)
    for b in range(trials):
        alone = train(data[b], v[b], sample_weight=weights[b], steps=STEPS)
        np.testing.assert_allclose(np.asarray(trace.W).reshape(trials, -1, 5, 5)[b], alone.W, **CLOSE)
        assert not np.allclose(alone.W, train(data[b], v[b], steps=STEPS).W, **CLOSE)


def test_batch_gradients_average_to_the_full_gradient():
    """Over an epoch without replacement the batches' gradients add up to the whole; with it, in expectation."""
    objective = Objective.from_data(DATA, V).weighted(torch.tensor([1.0, 2, 3, 4]))
    W = torch.randn(2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def at(part):
        scaled = part.gradient(W)
        return scaled.W * scaled.log_mean.exp()[:, None, None]

    halves = [torch.tensor([rows, rows[::-1]]) for rows in ([0, 2], [3, 1])]
    epoch = [torch.stack([half[0], half[0]]) for half in halves]
    np.testing.assert_allclose(sum(at(objective.rows(half)) for half in epoch) / 2, at(objective), **CLOSE)
    every = [torch.tensor([[i, j], [i, j]]) for i in range(4) for j in range(4)]
    np.testing.assert_allclose(sum(at(objective.rows(pair)) for pair in every) / 16, at(objective), **CLOSE)


def test_mini_batches_run_through_every_query_and_depend_on_the_seed():
    from attsvm.training.run.batches import Batches

    entropy = [(1,), (2,)]
    batches = Batches(5, 2, False, entropy)
    epoch = torch.cat([batches.at(k) for k in range(3)], 1)
    assert epoch.sort(-1).values.tolist() == [[0, 1, 2, 3, 4]] * 2
    assert [batches.at(k).shape[1] for k in range(6)] == [2, 2, 1] * 2
    assert torch.equal(Batches(5, 2, False, [(2,)]).at(4)[0], batches.at(4)[1])
    order = torch.cat([Batches(5, 2, True, entropy).at(k) for k in range(500)], 1)
    # 1000 draws of 5: a count has standard deviation 12.6.
    assert (np.abs(np.bincount(order[0].numpy()) - 200) < 5 * 12.6).all()
    whole = train(DATA, V, steps=STEPS, batch_size=4, backend="torch")
    np.testing.assert_allclose(whole.W, train(DATA, V, steps=STEPS).W, **CLOSE)
    for replacement in (False, True):
        one, two, other = (
            train(DATA, V, steps=STEPS, batch_size=2, replacement=replacement, seed=seed) for seed in (0, 0, 1)
        )
        np.testing.assert_array_equal(one.W, two.W)
        assert not np.allclose(one.W, other.W)
    foreign = train(DATA, V, steps=STEPS, batch_size=2, optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    np.testing.assert_allclose(foreign.W, train(DATA, V, steps=STEPS, batch_size=2, optimizer="gd").W, **CLOSE)
    heads = train(ONE, HEAD, heads=2, init="torch", steps=5, batch_size=2)
    assert np.isfinite(heads.W).all()


def test_label_noise_turns_labels_of_training_only_and_held_out_data_are_recorded():
    data, v = random_data(3, 40, 4, 5, gap=0.05, seed=1)
    fresh, _ = random_data(3, 20, 4, 5, gap=0.05, seed=2)
    trace = train(data, v, steps=200, record_every=100, label_noise=0.25, held_out=fresh, seed=5)
    np.testing.assert_array_equal(trace.data.labels != data.labels, trace.flipped)
    # 120 labels, each wrong with probability 1/4: 30 with standard deviation 4.7.
    assert abs(int(trace.flipped.sum()) - 30) < 5 * 4.7
    assert trace.held_out_accuracy.shape == trace.held_out_loss.shape == trace.accuracy.shape == (3, 3)
    for b in range(3):
        tokens = fresh.tokens[b]
        logits = np.einsum("ntd,de,ne->nt", tokens, trace.W[b, -1], fresh.queries[b])
        attention = np.exp(logits - logits.max(1, keepdims=True))
        attention /= attention.sum(1, keepdims=True)
        outputs = np.einsum("nt,ntd,d->n", attention, tokens, v[b])
        assert trace.held_out_accuracy[b, -1] == pytest.approx((fresh.labels[b] * outputs > 0).mean())
        assert trace.held_out_loss[b, -1] == pytest.approx(np.log1p(np.exp(-fresh.labels[b] * outputs)).mean())
    with pytest.raises(ValueError, match="held_out was None"):
        _ = train(ONE, HEAD, steps=1).held_out_loss


@pytest.mark.parametrize("odd", [np.nan, np.inf, -1.0])
def test_one_factor_without_meaning_is_refused(odd: float) -> None:
    with pytest.raises(ValueError, match="NaN, infinity or a negative number"):
        step_sizes(0.5, lambda k: np.where(k == 2, odd, 1.0), 0, 3)


def test_a_step_may_have_no_length() -> None:
    assert step_sizes(0.5, lambda k: k % 2, 0, 4).tolist() == [0.5, 0.0, 0.5, 0.0]


def test_embeddings_follow_the_gradient_of_the_whole_model():
    """Words as tokens, values and queries at once, against autograd through plain softmax."""
    rng = np.random.default_rng(2)
    table, tokens, labels = rng.standard_normal((6, 3)), rng.integers(6, size=(4, 3)), [1.0, -1, 1, -1]
    words = Vocabulary(table, tokens, tokens[:, 0])
    v, W0 = rng.standard_normal(3), 0.1 * rng.standard_normal((3, 3))
    options = {"optimizer": "gd", "lr": 0.3, "init": W0, "vocabulary": words, "embedding_lr": 0.2, "steps": 10}
    trace = train(words.data(labels), v, record_every=5, sample_weight=[1.0, 2, 1, 3], **options)
    E, W = torch.tensor(table, requires_grad=True), torch.tensor(W0, requires_grad=True)
    weights = torch.tensor([4.0, 8, 4, 12], dtype=torch.float64) / 7
    risks = []
    for _ in range(11):
        x = E[tokens]
        attention = torch.softmax(torch.einsum("ntd,de,ne->nt", x, W, x[:, 0]), -1)
        margins = torch.tensor(labels, dtype=torch.float64) * (
            torch.einsum("nt,ntd->nd", attention, x) @ torch.tensor(v)
        )
        risk = (weights * torch.nn.functional.softplus(-margins)).mean()
        risks.append(float(risk.detach()))
        ends = E.detach().clone(), W.detach().clone()
        gE, gW = torch.autograd.grad(risk, [E, W])
        with torch.no_grad():
            E -= 0.2 * gE
            W -= 0.3 * gW
    np.testing.assert_allclose(trace.embeddings[-1], ends[0], **CLOSE)
    np.testing.assert_allclose(trace.W[-1], ends[1], **CLOSE)
    # Recomputed with the table of each record.
    np.testing.assert_allclose(trace.loss, [risks[0], risks[5], risks[10]], **CLOSE)
    batch = train(
        Vocabulary(np.stack([table, 2 * table]), np.stack([tokens, tokens]), np.stack([tokens[:, 0]] * 2)).data(
            [labels, labels]
        ),
        v,
        **{**options, "vocabulary": Vocabulary(np.stack([table, 2 * table]), tokens, tokens[:, 0])},
    )
    other_trace = train(words.data(labels), v, **options)
    np.testing.assert_allclose(batch.embeddings[0], other_trace.embeddings, **CLOSE)


@pytest.mark.parametrize("size", [0.0, 1e-4, 1.0])
def test_a_normalised_step_moves_the_table_by_its_rate(size: float) -> None:
    """One step along the gradient of the whole model, by automatic differentiation, divided by its norm.

    The gradient has the size of the head; a gradient of zero moves nothing.
    """
    rng = np.random.default_rng(5)
    table, tokens, labels = rng.standard_normal((6, 3)), rng.integers(6, size=(4, 3)), [1.0, -1, 1, -1]
    words, v, W = Vocabulary(table, tokens, tokens[:, 0]), size * rng.standard_normal(3), rng.standard_normal((3, 3))
    trace = train(words.data(labels), v, vocabulary=words, embedding_lr=0.2, init=W, steps=1)
    E = torch.tensor(table, requires_grad=True)
    x = E[tokens]
    attention = torch.softmax(torch.einsum("ntd,de,ne->nt", x, torch.tensor(W), x[:, 0]), -1)
    margins = torch.tensor(labels).double() * (torch.einsum("nt,ntd->nd", attention, x) @ torch.tensor(v))
    (slope,) = torch.autograd.grad(torch.nn.functional.softplus(-margins).mean(), E)
    assert trace.embeddings is not None
    direction = (slope / slope.norm()).numpy() if size else np.zeros((6, 3))
    np.testing.assert_allclose(trace.embeddings[-1], table - 0.2 * direction, **CLOSE)


def test_tensors_are_looked_up_trial_by_trial() -> None:
    rng = np.random.default_rng(6)
    table, tokens = rng.standard_normal((2, 3, 6, 4)), rng.integers(6, size=(2, 3, 5, 7))
    queries = rng.integers(6, size=(2, 3, 5))
    labels = np.ones((2, 3, 5))
    data = Vocabulary(*(torch.as_tensor(array) for array in (table, tokens, queries))).data(torch.as_tensor(labels))
    for trial in np.ndindex(2, 3):
        np.testing.assert_array_equal(np.asarray(data.tokens)[trial], table[trial][tokens[trial]])
        np.testing.assert_array_equal(np.asarray(data.queries)[trial], table[trial][queries[trial]])
    arrays = Vocabulary(table, tokens, queries).data(labels)
    np.testing.assert_array_equal(arrays.tokens, np.asarray(data.tokens))


@pytest.mark.parametrize(
    ("tokens", "queries", "name"),
    [
        ([[0, 2]], None, "tokens"), ([[0, -1]], None, "tokens"), ([[0.0, 1.0]], None, "tokens"),
        ([0, 1], None, "tokens"), ([[0, 1]], [2], "queries"), ([[0, 1]], 0, "queries"),
    ],
)  # fmt: skip
def test_words_outside_the_table_are_named(tokens: Any, queries: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} has .*; rows of the table, 0 to 1, were expected"):
        Vocabulary(np.ones((2, 5)), tokens, queries)


def test_a_value_matrix_is_trained_and_its_head_is_not():
    rng = np.random.default_rng(4)
    V0, v = rng.standard_normal((5, 2)), np.array([1.0, -2.0])
    trace = train(DATA, ValueHead(V0, v), optimizer="gd", lr=0.5, head_lr=0.2, steps=5)
    assert set(trace.head) == {"V"}
    for b in range(2):
        V_, W = torch.tensor(V0, requires_grad=True), torch.zeros(5, 5, dtype=torch.float64, requires_grad=True)
        x, z, y = (torch.as_tensor(part[b]) for part in (DATA.tokens, DATA.queries, DATA.labels))
        for _ in range(5):
            attention = torch.softmax(torch.einsum("ntd,de,ne->nt", x, W, z), -1)
            margins = y * (torch.einsum("nt,ntd->nd", attention, x) @ V_ @ torch.tensor(v))
            gV, gW = torch.autograd.grad(torch.nn.functional.softplus(-margins).mean(), [V_, W])
            with torch.no_grad():
                V_ -= 0.2 * gV
                W -= 0.5 * gW
        np.testing.assert_allclose(trace.head["V"][b, -1], V_.detach(), **CLOSE)
        np.testing.assert_allclose(trace.W[b, -1], W.detach(), **CLOSE)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"batch_size": 9}, "batch_size is 9"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"label_noise": 2}, "label_noise is 2"),
        ({"sample_weight": [1.0]}, "sample_weight has"),
        ({"sample_weight": [1.0, -1, 1, 1]}, "sample_weight has weights"),
        ({"weight_decay": -1}, "weight_decay is -1"),
        ({"weight_decay": np.inf}, "weight_decay is inf"),
        ({"held_out": DATA[0]}, "held_out has 1 trials"),
        ({"init": "aligned"}, "init is 'aligned'"),
        ({"optimizer": "compositional_muon"}, "does not train parameterization='W'"),
        ({"optimizer": CompositionalMuon()}, "does not train parameterization='W'"),
        ({"optimizer": lambda params: 3}, "optimizer returned int"),
        ({"optimizer": torch.optim.SGD, "lr": 0.1}, "lr or weight_decay is given"),
        ({"optimizer": torch.optim.SGD, "head_lr": 0.1}, "head_lr=None, embedding_lr=None"),
        ({"embedding_lr": 0.1}, "embedding_lr is given; a vocabulary"),
        ({"embedding_lr": 0.1, "vocabulary": Vocabulary(np.ones((2, 5)), np.zeros((4, 5), int))}, "gives other tokens"),
        ({"optimizer": torch.optim.LBFGS, "batch_size": 2}, "steps by a closure"),
        ({"optimizer": lambda params: torch.optim.SGD([*params[:0], torch.nn.Parameter(torch.ones(1))])}, "trains 1"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        train(DATA, V, **{"steps": 2, **options})


def test_a_rule_with_a_name_adds_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    name: Any = "plain"
    monkeypatch.setitem(OPTIMIZERS, name, Entry("", ""))  # what is added under the name goes with the test

    class Plain(GradientDescent, name=name, W={"lr": 0.25}, KQ="it moves W alone"):
        pass

    trace = train(ONE, HEAD, optimizer=name, steps=3)
    assert Plain.name == name
    np.testing.assert_allclose(trace.W, train(ONE, HEAD, optimizer="gd", lr=0.25, steps=3).W, **CLOSE)
    with pytest.raises(ValueError, match="does not train parameterization='KQ': it moves W alone"):
        train(ONE, HEAD, optimizer=name, parameterization="KQ", steps=3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Signum(momentum=1.0), lambda: Lion(betas=(0.9, 1.0)), lambda: Muon(momentum=-0.1),
        lambda: Muon(orthogonalization="qr"), lambda: CompositionalMuon(damping=0.0), lambda: Shampoo(beta=1.1),
        lambda: SOAP(refresh=0), lambda: SOAP(eps=0.0), lambda: Adam(betas=(0.9, 1.0)), lambda: Adam(eps=-1e-8),
        lambda: Vocabulary(np.ones((2, 5)), [[2]]),
        lambda: ValueHead(np.ones((2, 3)), np.ones(2)), lambda: AxisDescent(axis="diagonal"),
    ],
)  # fmt: skip
def test_rules_refuse_what_has_no_meaning(make):
    with pytest.raises(ValueError, match="expected"):
        make()
