"""exact_cross_entropy with torch's options: the same results, and gradients that keep their digits."""

from __future__ import annotations

import itertools

import mpmath as mp
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.nn.functional import cross_entropy

from attsvm.functional import exact_cross_entropy

mp.mp.dps = 60
# torch's own forward-mode differentiation still compiles helpers with the deprecated torch.jit.script.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


def draw(*shape: int, seed: int = 0, scale: float = 3.0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).to(dtype)


LABELS = torch.tensor([0, 4, -100, 2, 1, -100])
WEIGHT = torch.tensor([0.5, 2.0, 0.0, 1.0, 3.0], dtype=torch.float64)
PROBABILITIES = torch.softmax(draw(6, 5, seed=7), -1)
SIX = draw(6, 5)
REDUCTIONS = ("mean", "sum", "none")
# A loss of at most 20 is a sum of some ten terms, each off by a few roundings of it.
near = {"rtol": 1e-14, "atol": 1e-14}


def agree(logits: torch.Tensor, target: torch.Tensor, options: dict, **ours) -> None:
    """Compare value and gradient with torch's; both move by rounding of terms at most twice the total weight."""
    for reduction in REDUCTIONS:
        pair = []
        for function, extra in ((exact_cross_entropy, ours), (cross_entropy, {})):
            a = logits.clone().requires_grad_()
            value = function(a, target, reduction=reduction, **options, **extra)
            slopes = torch.autograd.grad((value * torch.ones_like(value).cumsum(-1)).sum() if value.ndim else value, a)[
                0
            ]
            pair.append((value, slopes))
        torch.testing.assert_close(*pair, **near)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weight"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("ignore_index", [-100, 1, 99])
def test_labels_as_torch(weight: torch.Tensor | None, smoothing: float, ignore_index: int) -> None:
    labels = LABELS.masked_fill(LABELS == -100, ignore_index)
    agree(SIX, labels, {"weight": weight, "label_smoothing": smoothing, "ignore_index": ignore_index})


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weight"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_probabilities_as_torch(weight: torch.Tensor | None, smoothing: float) -> None:
    for target in (PROBABILITIES, torch.nn.functional.one_hot(LABELS.clamp(min=0), 5).double(), 2.0 * PROBABILITIES):
        agree(SIX, target, {"weight": weight, "label_smoothing": smoothing})


@pytest.mark.parametrize("shape", [(3, 5, 2), (3, 5, 2, 4), (2, 5, 3, 4, 2)])
def test_classes_in_the_second_dimension_as_torch(shape: tuple[int, ...]) -> None:
    logits = draw(*shape)
    labels = torch.randint(0, 5, (shape[0], *shape[2:]), generator=torch.Generator().manual_seed(0))
    labels[0] = -100
    agree(logits, labels, {"weight": WEIGHT, "label_smoothing": 0.2})
    agree(logits, torch.softmax(draw(*shape, seed=1), 1), {"weight": WEIGHT})
    last = exact_cross_entropy(logits.movedim(1, -1), labels, "none", weight=WEIGHT)
    torch.testing.assert_close(last, cross_entropy(logits, labels, WEIGHT, reduction="none"), **near)


def test_one_row_and_no_rows_as_torch() -> None:
    agree(SIX[0], torch.tensor(3), {"weight": WEIGHT, "label_smoothing": 0.1})
    agree(SIX[0], PROBABILITIES[0], {})
    for labels in (torch.tensor(-100), torch.full((6,), -100)):
        logits = SIX[0] if labels.ndim == 0 else SIX
        for weight, reduction in itertools.product((None, WEIGHT), REDUCTIONS):
            value = exact_cross_entropy(logits, labels, reduction, weight=weight)
            expected = cross_entropy(logits, labels, weight, reduction=reduction)
            torch.testing.assert_close(value, expected, rtol=0, atol=0, equal_nan=True)
    assert exact_cross_entropy(SIX[:0], LABELS[:0]).isnan()
    assert exact_cross_entropy(SIX, torch.full((6,), 2), weight=WEIGHT).isnan()  # of weight zero, as torch


def test_a_shape_that_fits_two_dimensions_is_refused() -> None:
    logits, labels = draw(4, 4, 4), torch.randint(0, 4, (4, 4), generator=torch.Generator().manual_seed(0))
    with pytest.raises(
        ValueError, match=r"fits classes along dimensions 1 and 2 of logits \(4, 4, 4\); dim=1 or dim=-1"
    ):
        exact_cross_entropy(logits, labels)
    agree(logits, labels, {}, dim=1)
    agree(logits, torch.softmax(logits, 1), {})
    last = exact_cross_entropy(logits, labels, dim=-1)
    torch.testing.assert_close(last, cross_entropy(logits.flatten(0, 1), labels.flatten()), **near)


@pytest.mark.parametrize("options", [{}, {"weight": WEIGHT}, {"label_smoothing": 0.3}])
@pytest.mark.slow
def test_derivatives_of_both_modes(options: dict) -> None:
    a = SIX.clone().requires_grad_()
    for reduction in REDUCTIONS:

        def of_labels(x: torch.Tensor, reduction: str = reduction) -> torch.Tensor:
            return exact_cross_entropy(x, LABELS, reduction, **options)

        assert gradcheck(of_labels, a, check_forward_ad=True)
        assert gradgradcheck(of_labels, a)
    p = PROBABILITIES.clone().requires_grad_()

    def of_both(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return exact_cross_entropy(x, y, "none", **options)

    assert gradcheck(of_both, (a, p), check_forward_ad=True)
    assert gradgradcheck(of_both, (a, p))
    rows = torch.vmap(torch.func.grad(lambda x, y: exact_cross_entropy(x, y, "sum", **options)))
    for target in (LABELS, PROBABILITIES):
        (expected,) = torch.autograd.grad(cross_entropy(a, target, reduction="sum", **options), a)
        torch.testing.assert_close(rows(SIX, target), expected, **near)


def true_slope(logits: list[float], q: list[mp.mpf]) -> tuple[list[mp.mpf], list[mp.mpf]]:
    """Entries Q P - q of the gradient, and the sizes of their terms."""
    powers = [mp.exp(mp.mpf(a)) for a in logits]
    total, mass = mp.fsum(powers), mp.fsum(q)
    parts = [mass * power / total for power in powers]
    return [part - one for part, one in zip(parts, q, strict=True)], [p + one for p, one in zip(parts, q, strict=True)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("lead", [0.0, 20.0, 40.0, 80.0])
def test_weights_and_ignored_rows_leave_gradients_exact(dtype: torch.dtype, lead: float) -> None:
    rows = [[lead, 0.5, -0.25], [lead + 1, -lead, 0.25], [0.0, lead, 1.0], [lead, -torch.inf, 0.0]]
    labels, weight = torch.tensor([0, 0, 1, -100]), torch.tensor([0.5, 3.0, 1.0], dtype=dtype)
    logits = torch.tensor(rows, dtype=dtype, requires_grad=True)
    exact_cross_entropy(logits, labels, weight=weight).backward()
    assert logits.grad is not None
    assert (logits.grad[3] == 0).all()
    total = mp.mpf(0.5) + mp.mpf(0.5) + 3  # of labels 0, 0 and 1
    # An exponent of at most 2 lead + 1 is rounded once, then a power, a sum, a quotient and two products.
    tolerance = torch.finfo(dtype).eps * (2 * lead + 10)
    for row, label, slope in zip(rows[:3], labels, logits.grad.tolist(), strict=False):
        q = [mp.mpf(float(weight[label])) / total if c == label else mp.mpf(0) for c in range(3)]
        for true, computed in zip(true_slope(row, q)[0], slope, strict=True):
            # Powers below the smallest normal number keep fewer digits.
            assert abs(computed - true) <= tolerance * abs(true) + torch.finfo(dtype).tiny


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("smoothing", [0.1, 1e-4, 1e-12])
@pytest.mark.parametrize("lead", [0.0, 3.0, 30.0, 60.0])
def test_smoothing_is_not_lost_to_the_one_beside_it(dtype: torch.dtype, smoothing: float, lead: float) -> None:
    row = [lead, 0.5, -0.25, 0.0]
    logits = torch.tensor([row], dtype=dtype, requires_grad=True)
    exact_cross_entropy(logits, torch.tensor([0]), label_smoothing=smoothing).backward()
    assert logits.grad is not None
    even = mp.mpf(smoothing) / 4
    slope, terms = true_slope(row, [1 - mp.mpf(smoothing) + even, even, even, even])
    tolerance = torch.finfo(dtype).eps * (lead + 10)
    # Off the label its two terms are what rounding acts on; on the label the terms of the others, plus its smoothing.
    bounds = [mp.fsum(terms[1:]) + 2 * even, *terms[1:]]
    for true, computed, bound in zip(slope, logits.grad[0].tolist(), bounds, strict=True):
        assert abs(computed - true) <= tolerance * bound


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rest", [0.5, 1e-3, 1e-10, 0.0])
@pytest.mark.parametrize("lead", [-30.0, 0.0, 3.0, 30.0, 60.0])
def test_probabilities_leave_gradients_and_losses_exact(dtype: torch.dtype, rest: float, lead: float) -> None:
    row, target = [lead, 0.5, -0.25, 0.0], [1.0, rest, 0.25 * rest, 0.0]
    logits = torch.tensor(row, dtype=dtype, requires_grad=True)
    loss = exact_cross_entropy(logits, torch.tensor(target, dtype=dtype))
    loss.backward()
    assert logits.grad is not None
    q = [mp.mpf(float(torch.tensor(one, dtype=dtype))) for one in target]
    slope, terms = true_slope(row, q)
    tolerance = torch.finfo(dtype).eps * (abs(lead) + 20)
    half = mp.fsum(terms) / 2
    for c, (true, computed) in enumerate(zip(slope, logits.grad.tolist(), strict=True)):
        bound = mp.fsum(terms) - terms[c] if terms[c] > half else terms[c]
        assert abs(computed - true) <= tolerance * bound
    total = mp.fsum(mp.exp(mp.mpf(a)) for a in row)
    # Each -log P is log1p of the other powers, so that none is zero.
    odds = [mp.fsum(mp.exp(mp.mpf(b) - a) for k, b in enumerate(row) if k != c) for c, a in enumerate(map(mp.mpf, row))]
    value = mp.fsum(one * mp.log1p(o) for one, o in zip(q, odds, strict=True))
    assert total > 0
    assert abs(float(loss.detach()) - value) <= tolerance * value


def test_classes_without_probability_may_be_masked() -> None:
    logits = torch.tensor([[1.0, -torch.inf, 2.0]], requires_grad=True)
    loss = exact_cross_entropy(logits, torch.tensor([[0.25, 0.0, 0.75]]))
    assert loss.item() == pytest.approx(0.25 * 1.3132616 + 0.75 * 0.3132616, rel=1e-6)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("cast", [torch.bfloat16, torch.float16])
def test_autocast_promotes_to_float32_as_torch(cast: torch.dtype) -> None:
    logits = draw(6, 5, dtype=cast).requires_grad_()
    with torch.autocast("cpu", dtype=cast):
        mine, theirs = (function(logits, LABELS) for function in (exact_cross_entropy, cross_entropy))
        wide = exact_cross_entropy(SIX, LABELS)
    assert (mine.dtype, wide.dtype) == (torch.float32, torch.float64)
    assert theirs.dtype == torch.float32
    torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)
    # Out of autocast the dtype is that of the logits, and the arithmetic float32 all the same.
    narrow = exact_cross_entropy(logits, LABELS)
    assert narrow.dtype == cast
    assert narrow == mine.to(cast)


@pytest.mark.parametrize("lead", [0.0, 3.0, 8.0, 20.0])
@pytest.mark.parametrize("autocast", [True, False])
def test_half_precision_gradients_are_at_least_as_exact_as_torch(lead: float, autocast: bool) -> None:
    logits = draw(64, 10, dtype=torch.bfloat16)
    labels = torch.arange(64) % 10
    logits[range(64), labels] += lead
    wide = logits.double().requires_grad_()
    (exact,) = torch.autograd.grad(exact_cross_entropy(wide, labels, "sum"), wide)
    errors = []
    for function in (exact_cross_entropy, cross_entropy):
        narrow = logits.clone().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = function(narrow, labels, reduction="sum")
        (slope,) = torch.autograd.grad(loss, narrow)
        errors.append(((slope.double() - exact) / exact).abs().amax())
    # Rounded to bfloat16 once, after float32: half an eps of 2^-7, and some of float32's.
    assert errors[0] <= 2.0**-8 * 1.001
    assert errors[0] <= errors[1]


@pytest.mark.parametrize("lead", [20.0, 200.0])
def test_the_scaled_loss_takes_weights_and_ignored_rows(lead: float) -> None:
    logits = torch.tensor([[lead, 0.0, 0.5], [0.5, 2 * lead, 0.0], [3.0, 4.0, 5.0]]).double().requires_grad_()
    labels, weight = torch.tensor([0, 1, -100]), torch.tensor([0.5, 2.0, 1.0]).double()
    for reduction in REDUCTIONS:
        size, exponent = exact_cross_entropy(logits, labels, reduction, weight=weight, scaled=True)
        plain = exact_cross_entropy(logits, labels, reduction, weight=weight)
        # Exponents of size 2 lead are rounded.
        torch.testing.assert_close(size * exponent.exp(), plain, rtol=8e-16 * (1 + 2 * lead), atol=0)
    size, exponent = exact_cross_entropy(logits, labels, weight=weight, scaled=True)
    (slope,) = torch.autograd.grad(size, logits)
    (plain,) = torch.autograd.grad(exact_cross_entropy(logits, labels, weight=weight), logits)
    torch.testing.assert_close(slope * exponent.exp(), plain, rtol=8e-16 * (2 + 2 * lead), atol=0)
    nothing = torch.full((3,), -100)
    assert exact_cross_entropy(logits, nothing, scaled=True)[0].isnan()
    assert exact_cross_entropy(logits, nothing, "sum", scaled=True)[0] == 0


# The tracer itself builds the object that this warning is about.
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("scale", [1.0, 40.0])
@pytest.mark.parametrize("target", [LABELS, PROBABILITIES], ids=["labels", "probabilities"])
@pytest.mark.parametrize("options", [{}, {"weight": WEIGHT}, {"label_smoothing": 0.1}], ids=str)
@pytest.mark.slow
def test_the_compiled_graph_has_the_same_gradient(options: dict, target: torch.Tensor, scale: float) -> None:
    torch.compiler.reset()
    logits = draw(6, 5, scale=scale)
    logits[2] = torch.tensor([-torch.inf, 0.0, 1.0, -torch.inf, 2.0])
    target = target.clone()
    if target.is_floating_point():
        target[2] = torch.tensor([0.0, 0.5, 0.25, 0.0, 0.25])
        if "label_smoothing" in options:
            logits[2] = 0.0
    logits.requires_grad_()

    def loss(a: torch.Tensor) -> torch.Tensor:
        return exact_cross_entropy(a, target, **options)

    eager, compiled = loss(logits), torch.compile(loss, backend="aot_eager", fullgraph=True)(logits)
    torch.testing.assert_close(compiled, eager, rtol=1e-14, atol=0)
    (first,), (second,) = torch.autograd.grad(eager, logits), torch.autograd.grad(compiled, logits)
    assert first.isfinite().all()
    # Entry by entry relative to its row.
    size = first.abs().amax(-1, keepdim=True) + torch.finfo(torch.float64).tiny
    torch.testing.assert_close(second / size, first / size, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: exact_cross_entropy(SIX, LABELS, WEIGHT), r"^reduction is torch.float64 of shape \(5,\)"),
        (lambda: exact_cross_entropy(SIX, LABELS, weight=WEIGHT[:3]), r"^weight is torch.float64 of shape \(3,\)"),
        (lambda: exact_cross_entropy(SIX, LABELS, label_smoothing=1.5), "^label_smoothing is 1.5"),
        (lambda: exact_cross_entropy(SIX, PROBABILITIES, ignore_index=1), "^ignore_index is 1 with probabilities"),
        (lambda: exact_cross_entropy(SIX, PROBABILITIES[:, :3]), "^target is torch.float64"),
        (lambda: exact_cross_entropy(SIX, LABELS[:4]), "^target is torch.int64"),
        (
            lambda: exact_cross_entropy(draw(3, 5, 2, 4), LABELS),
            r"; integers of shape \(3, 5, 2\) or \(3, 2, 4\), or probabilities of shape \(3, 5, 2, 4\), were expected",
        ),
        (lambda: exact_cross_entropy(SIX, LABELS, dim=2), "^dim is 2"),
        (lambda: exact_cross_entropy(SIX, LABELS, dim=0), "^target is torch.int64"),
        (lambda: exact_cross_entropy(SIX, PROBABILITIES, scaled=True), "^scaled is True with target torch.float64"),
        (lambda: exact_cross_entropy(SIX, LABELS, label_smoothing=0.1, scaled=True), "^scaled is True"),
    ],
)
def test_bad_options_are_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_one_class_is_no_choice_and_rows_may_be_ignored(smoothing: float) -> None:
    agree(draw(2, 1), torch.tensor([0, -100]), {"label_smoothing": smoothing})
