"""The settings of attention: sequences, causal masks, prompts, next tokens, several heads, a trained head."""

import numpy as np
import pytest
import torch

from attsvm import TokenData, correlation, train
from attsvm.data.synthetic import random_data
from attsvm.nn.heads import LambdaHead, LinearHead, ReLUHead
from attsvm.training.risk.objective import Objective

RNG = np.random.default_rng(0)


def numerical_gradient(function, point, h=1e-6):
    """Central differences of a scalar function of an array."""
    grad = np.zeros_like(point)
    for index in np.ndindex(point.shape):
        step = np.zeros_like(point)
        step[index] = h
        grad[index] = (function(point + step) - function(point - step)) / (2 * h)
    return grad


def test_sequence_risk_is_the_formula_and_causal_hides_the_future():
    X, Y = RNG.standard_normal((2, 3, 4)), RNG.choice([-1.0, 1.0], (2, 3))
    v, W = RNG.standard_normal(4), RNG.standard_normal((4, 4))
    for causal in (False, True):
        data = TokenData.from_sequences(X, Y, causal=causal)
        risk = 0.0
        for x, y in zip(X, Y, strict=True):
            for k in range(3):
                prefix = x[: k + 1] if causal else x
                a = prefix @ W @ x[k]
                s = np.exp(a) / np.exp(a).sum()
                risk += np.log1p(np.exp(-y[k] * (s @ prefix @ v))) / 6
        trace = train(data, v, init=W, steps=0)
        assert trace.loss[0] == pytest.approx(risk, rel=1e-13)
        if causal:
            attention = trace.attention[0].reshape(2, 3, 3)
            assert (np.triu(attention, 1) == 0).all()
            assert (attention[:, 0, 0] == 1).all()


def test_sequences_keep_batches_masks_and_tensors():
    X, Z = RNG.standard_normal((5, 2, 3, 4)), RNG.standard_normal((5, 2, 6, 2))
    mask = RNG.random((5, 2, 6, 3)) < 0.5
    mask[..., 0] = True
    data = TokenData.from_sequences(X, np.ones((5, 2, 6)), Z, mask=mask)
    assert (data.batch_shape, data.n, data.T, data.dz) == ((5,), 12, 3, 2)
    np.testing.assert_array_equal(data.mask, mask.reshape(5, 12, 3))
    np.testing.assert_array_equal(data.tokens[3, 7], X[3, 1])
    np.testing.assert_array_equal(data.queries[3, 7], Z[3, 1, 1])
    tensors = TokenData.from_sequences(torch.as_tensor(X), torch.ones(5, 2, 6), torch.as_tensor(Z), mask=mask)
    np.testing.assert_array_equal(tensors.tokens.numpy(), data.tokens)


# Single input of the prompt-attention paper: keys see the first two coordinates, the score is the third.
PROMPT_KEY = np.diag([1.0, 1, 0])


def missing_direction(data, p, token, score_ratio):
    """1 - cos with the published direction may be (log(N Gamma) + 1) / m at margin m (tests/reference/test_limit_*)."""
    margins = np.delete((data.tokens[0, token] - data.tokens[0]) @ p, token)
    return (np.log(2 * score_ratio) + 1) / margins.min()


def test_prompt_attention_goes_to_the_published_direction():
    X = np.array([[[-0.1, 1, 1], [1, 0, 0.9], [0, 0, 0.9]]])
    data = TokenData.prompt(X, [1.0], PROMPT_KEY)
    assert data.dz == 1
    p = train(data, [0.0, 0, 1], steps=20_000, init=np.zeros((3, 1))).W[-1, :, 0]
    expected = np.array([-0.1, 1, 0]) / 1.01
    # Equal score gaps; slopes of the logistic loss between scores 0.9 and 1 differ by less than 1.1.
    assert 1 - p @ expected / np.linalg.norm(p) / np.linalg.norm(expected) <= missing_direction(data, p, 0, 1.1)


def test_prompt_attention_has_a_local_direction():
    X = np.array([[[-0.1, 1, 1], [1, 0, 0.9], [0, 0, 0]]])
    data = TokenData.prompt(X, [1.0], PROMPT_KEY)
    ends = [train(data, [0.0, 0, 1], steps=5000, init=np.array([[0.0], [b], [0]])).W[-1, :, 0] for b in (1, -1.5)]
    for token, (p, expected) in enumerate(zip(ends, np.array([[-0.1, 1, 0], [1, 0, 0]]), strict=True)):
        # Score gaps are 0.1 to 1, slopes between scores 0 and 1 differ by less than 2.
        missing = 1 - p @ expected / np.linalg.norm(p) / np.linalg.norm(expected)
        assert missing <= missing_direction(data, p, token, 20)


def test_next_token_probability_is_what_is_trained():
    E = np.eye(4)
    sequences = np.array([[0, 1, 2, 1], [2, 3, 0, 0], [3, 3, 1, 2]])
    data = TokenData.next_token(E, sequences, [1, 2, 3])
    trace = train(data, [1.0], loss="log", steps=300, record_every=100)
    probability = (trace.attention[-1] * (sequences == np.array([[1], [2], [3]]))).sum(-1)
    assert trace.loss[-1] == pytest.approx(-np.log(probability).mean(), rel=1e-9)
    assert trace.loss[0] == pytest.approx(-np.log([1 / 2, 1 / 4, 1 / 2]).mean(), rel=1e-13)
    assert (probability > 0.999).all()
    # Copies of a token have one embedding, so they keep equal attention.
    np.testing.assert_allclose(trace.attention[-1, 2, 0], trace.attention[-1, 2, 1], rtol=1e-13)


def test_next_token_query_is_the_last_visible_token():
    mask = np.array([[True, True, False], [True, True, True]])
    data = TokenData.next_token(np.eye(3), [[0, 1, 2], [0, 1, 2]], [0, 1], mask)
    np.testing.assert_array_equal(data.queries, np.eye(3)[[1, 2]])


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("numerics", ["exact", "autograd"])
def test_several_heads_add_up(per_head, numerics):
    data, v = random_data(2, 3, 4, 5, seed=3)
    W = RNG.standard_normal((2, 2, 5, 5))
    v = RNG.standard_normal((2, 2, 5)) if per_head else v
    objective = Objective.from_data(data, v, heads=2, numerics=numerics)
    gradient = objective.gradient(torch.as_tensor(W))
    mine = gradient.log_scale.exp()[:, None, None, None] * gradient.W / 3

    def risk(W):
        total = 0.0
        for trial in range(2):
            a = np.einsum("ntd,hde,ne->hnt", data.tokens[trial], W[trial], data.queries[trial])
            s = np.exp(a - a.max(-1, keepdims=True))
            s /= s.sum(-1, keepdims=True)
            heads = v[trial] if per_head else np.stack([v[trial]] * 2)
            u = data.labels[trial] * np.einsum("hnt,ntd,hd->n", s, data.tokens[trial], heads)
            total += np.log1p(np.exp(-u)).mean()
        return total

    np.testing.assert_allclose(mine, numerical_gradient(risk, W), atol=1e-8)
    np.testing.assert_allclose(float(objective.value(torch.as_tensor(W)).sum()), risk(W), rtol=1e-13)


def test_a_nonlinear_head_reads_the_sum_of_heads():
    data, _ = random_data(2, 3, 4, 5, seed=3)
    W = torch.as_tensor(RNG.standard_normal((2, 3, 5, 5)))
    head = LambdaHead(RNG.standard_normal((2, 5)), 0.4)
    gradients = [
        Objective.from_data(data, head, heads=3, numerics=numerics).gradient(W) for numerics in ("exact", "autograd")
    ]
    exact, plain = (g.log_scale.exp()[:, None, None, None] * g.W for g in gradients)
    torch.testing.assert_close(exact, plain, rtol=0, atol=1e-12)


@pytest.mark.parametrize("parameterization", ["W", "KQ"])
@pytest.mark.parametrize("optimizer", ["gd", "normalized_gd", "sign", "spectral", "adam"])
def test_heads_train_with_every_rule(parameterization, optimizer):
    data, v = random_data(2, 3, 4, 5, seed=3)
    options = {"heads": 2, "init": "torch", "parameterization": parameterization, "optimizer": optimizer}
    trace = train(data, v, steps=40, record_every=20, **options)
    assert trace.W.shape == (2, 3, 2, 5, 5)
    assert trace.attention.shape == (2, 3, 2, 3, 4)
    assert trace.selected.shape == (2, 2, 3)
    assert (trace.loss[:, -1] < trace.loss[:, 0]).all()


def test_polyak_steps_serve_several_heads():
    data, v = random_data(2, 3, 4, 5, gap=0.1, seed=3)
    trace = train(data, v, heads=2, init="torch", optimizer="polyak", steps=200, record_every=100)
    assert (trace.loss[:, -1] < trace.loss[:, 0]).all()


@pytest.mark.parametrize("head", ["linear", "relu", "lambda", "module"])
def test_the_head_moves_along_its_gradient(head):
    data, v = random_data(None if head == "module" else 2, 3, 4, 5, seed=3)
    heads = {
        "linear": lambda: LinearHead(v),
        "relu": lambda: ReLUHead(RNG.standard_normal((5, 3)), RNG.standard_normal(3)),
        "lambda": lambda: LambdaHead(RNG.standard_normal(5), 0.2),
        "module": lambda: torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double(),
    }[head]()
    init = np.ones((5, 5))
    trace = train(data, heads, optimizer="gd", steps=1, head_lr=0.5, init=init)
    objective = Objective.from_data(data, heads, train_head=True)
    names, parameters = zip(*objective.head.named_parameters(), strict=True)  # pyright: ignore
    output = objective.output(torch.as_tensor(init).expand(len(objective.labels), 5, 5))
    margin = objective.labels * objective.head(output).view_as(objective.labels)
    grads = torch.autograd.grad(torch.nn.functional.softplus(-margin).mean(-1).sum(), parameters)
    for name, grad in zip(names, grads, strict=True):
        step = trace.head[name].take(1, axis=len(data.batch_shape)) - trace.head[name].take(
            0, axis=len(data.batch_shape)
        )
        np.testing.assert_allclose(step, -0.5 * grad.numpy(), atol=1e-14)


def test_a_normalised_head_moves_by_its_rate() -> None:
    data, v = random_data(2, 3, 4, 5, seed=3)
    plain, unit = (
        train(data, LinearHead(v), optimizer=rule, steps=1, head_lr=0.5).head["v"] for rule in ("gd", "normalized_gd")
    )
    slope = plain[:, 1] - plain[:, 0]
    direction = slope / np.linalg.norm(slope, axis=-1, keepdims=True)
    np.testing.assert_allclose(unit[:, 1] - unit[:, 0], 0.5 * direction, atol=1e-14)


def test_a_normalised_head_without_a_slope_stays() -> None:
    """Values of zero have the output zero, whatever the head."""
    data, v = random_data(2, 3, 4, 5, seed=3)
    still = TokenData(data.tokens, data.queries, data.labels, values=np.zeros_like(data.tokens))
    trace = train(still, LinearHead(v), steps=2, head_lr=0.5)
    assert not trace.notice
    np.testing.assert_array_equal(trace.head["v"][:, -1], v)


def test_the_head_sees_the_product_of_factors() -> None:
    data, v = random_data(2, 3, 4, 5, seed=3)
    K, Q = RNG.standard_normal((2, 5, 2))
    options = {"optimizer": "gd", "steps": 1, "head_lr": 0.5}
    factors = train(data, LinearHead(v), parameterization="KQ", init=(K, Q), **options)
    product = train(data, LinearHead(v), init=K @ Q.T, **options)
    np.testing.assert_allclose(factors.head["v"], product.head["v"], rtol=0, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize(("height", "limit"), [(1.0, (4 / 3, 1 / 3)), (1.5, (1.0, 0.0))])
def test_joint_training_reaches_the_published_limits(height, limit):
    # arXiv 2306.13596, joint (v, p): the third input is a support vector of v at height 1 and none at 1.5, where its
    # margin constraint on p is relaxed.
    X = np.array([[[0.0, 0], [1, 1]], [[0, 0], [1, -1]], [[0, 0], [0.5, height]]])
    data = TokenData.prompt(X, [1.0, -1, 1])
    trace = train(data, [-1.0, 0], head_lr=0.1, init=np.array([[0.0], [-1]]), steps=3000)
    p, v = trace.W[-1, :, 0], trace.head["v"][-1]
    # The cosine of normalised descent errs like (log(n T) / margin)^2, here (2 / 300)^2 at most.
    assert p @ limit / np.linalg.norm(p) / np.linalg.norm(limit) > 1 - 5e-5
    assert v[1] / np.linalg.norm(v) > 1 - 5e-5  # the max-margin classifier of the selected tokens is (0, 1)


def test_recorded_losses_use_the_recorded_head():
    data, v = random_data(3, 4, 5, 6, seed=1)
    trace = train(data, v, head_lr=0.1, steps=30, record_every=10)
    for record, step in enumerate(trace.step):
        other_trace = train(data, v, head_lr=0.1, steps=int(step))
        np.testing.assert_allclose(trace.loss[:, record], other_trace.loss[:, -1], rtol=1e-12)
        np.testing.assert_allclose(trace.head["v"][:, record], other_trace.head["v"][:, -1], atol=1e-13)


def test_stationary_tells_a_dead_gradient_from_a_live_one():
    data, v = random_data(2, 4, 5, 6, gap=0.05, seed=1)
    start = 1e4 * np.eye(6)
    assert not train(data, v, init=start, steps=1).stationary.any()
    assert train(data, v, init=start, steps=1, numerics="autograd").stationary.all()
    assert train(data, np.zeros(6), steps=1).stationary.all()
    # The slope of a custom loss underflows where the named loss goes on.
    far = 2000 * v
    assert train(data, far, init=start, steps=1, loss=lambda u: torch.exp(-u)).stationary.dtype == bool


def test_exponential_loss_as_a_callable_is_the_named_one():
    data, v = random_data(2, 4, 5, 6, seed=1)
    one = train(data, v, loss=lambda u: torch.exp(-u), steps=50)
    two = train(data, v, loss="exponential", steps=50)
    assert (correlation(one.W[:, -1], two.W[:, -1]) > 1 - 1e-12).all()


SEQ = RNG.standard_normal((2, 3, 4))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: TokenData.from_sequences(SEQ, np.ones((2, 2))), r"labels has shape \(2, 2\)"),
        (lambda: TokenData.from_sequences(SEQ, np.ones((2, 3)), SEQ[:1]), "do not fit"),
        (lambda: TokenData.from_sequences(SEQ, np.ones((2, 2)), SEQ[:, :2], causal=True), "causal"),
        (lambda: TokenData.from_sequences(SEQ, np.ones((2, 3)), mask=np.ones((2, 3))), "mask is"),
        (lambda: TokenData.prompt(SEQ, [1, 1], np.ones((2, 3))), r"key has shape \(2, 3\)"),
        (lambda: TokenData.next_token(np.eye(3), [[0, 1]], [2]), r"targets\[0\] is 2; a token of its sequence"),
        (lambda: TokenData.next_token(np.eye(3), [[0, 3]], [0]), "identities from 0 to 2"),
        (lambda: TokenData.next_token(np.eye(3), [[0.5, 1]], [0]), "do not fit"),
        (lambda: TokenData.next_token(np.eye(3), [[0, 1]], [0], [[False, False]]), "mask has shape"),
        (lambda: train(*random_data(2, 3, 4, 5), heads=0), "heads is 0"),
        (lambda: train(*random_data(2, 3, 4, 5), head_lr=-1.0), "head_lr is -1"),
        (lambda: train(random_data(2, 3, 4, 5)[0], lambda x: x.sum(-1), head_lr=1.0), "no parameters"),
        (lambda: train(random_data(2, 3, 4, 5)[0], torch.nn.Linear(5, 1), head_lr=1.0), "one module for 2 trials"),
        (
            lambda: train(random_data(2, 3, 4, 5)[0], lambda x: x.sum(-1), optimizer="polyak"),
            "a linear one was expected",
        ),
        (lambda: train(random_data(2, 3, 4, 5)[0], ReLUHead(np.ones((3, 5, 2)))), r"head V has shape \(3, 5, 2\)"),
    ],
)
def test_bad_settings_are_named(call, sentence):
    with pytest.raises(ValueError, match=sentence) as error:
        call()
    assert "\n" not in str(error.value)
