"""Every constant of the theory as the inequality it stands for, against brute force on random instances."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest
import torch

from attsvm import TokenData, theory
from attsvm.data.synthetic import random_data
from attsvm.theory.conditions import initial_gradient
from attsvm.theory.loss_slopes import slope_range

LOSSES = {
    "logistic": lambda u: np.logaddexp(0, -u),
    "exponential": lambda u: np.exp(-u),
    "correlation": lambda u: -u,
}


def trial_of(seed: int, n: int, T: int, d: int, gap: float | None = None) -> theory.Trial:
    return theory.Trial.of(*random_data(None, n, T, d, seed=seed, gap=gap))


def attention(trial: theory.Trial, W: np.ndarray) -> np.ndarray:
    logits = trial.logits(W)
    s = np.exp(logits - logits.max(axis=1, keepdims=True))
    return s / s.sum(axis=1, keepdims=True)


def risk(trial: theory.Trial, W: np.ndarray, loss: str = "logistic") -> float:
    return float(LOSSES[loss]((attention(trial, W) * trial.gamma).sum(axis=1)).mean())


class Constraints:
    """The rejected tokens of a locally optimal direction as matrices delta z^T, and the gradient through them."""

    def __init__(self, trial: theory.Trial, direction: theory.LocalOptimality) -> None:
        self.trial, self.selected = trial, direction.selected
        self.rows, self.columns = np.nonzero(direction.solution.problem.rejected)
        scores_of_selection = trial.tokens[self.rows, self.selected[self.rows]]
        delta = scores_of_selection - trial.tokens[self.rows, self.columns]
        self.matrices = delta[:, :, None] * trial.queries[self.rows][:, None, :]  # (J, d, dz)
        self.near = direction.neighbours[self.rows, self.columns]
        self.unit = direction.W / np.linalg.norm(direction.W)

    def margins(self, W: np.ndarray) -> np.ndarray:
        return np.tensordot(self.matrices, W, axes=2)

    def direction_beside(self, rng: np.random.Generator) -> np.ndarray:
        """A unit matrix orthogonal to the direction, in the span of the constraints."""
        weights = rng.choice([-1.0, 1.0], len(self.rows)) * rng.random(len(self.rows)) ** 3
        P = np.tensordot(weights, self.matrices, axes=1)
        P -= (P * self.unit).sum() * self.unit
        return P / np.linalg.norm(P)

    def shares(self, W: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log of the probability of every rejected token (J,), and what its score lies below the mean (J,).

        The differences of scores are weighted and summed, so that nothing cancels however small the probabilities are.
        """
        n, T = self.trial.mask.shape
        logits = np.zeros((n, T))
        logits[self.rows, self.columns] = -self.margins(W)
        logits -= logits.max(axis=1, keepdims=True)
        log_s = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        gamma = self.trial.gamma
        below = ((gamma[:, None, :] - gamma[:, :, None]) * np.exp(log_s)[:, None, :]).sum(axis=2)  # (n, T)
        return log_s[self.rows, self.columns], below[self.rows, self.columns]

    def pull(self, W: np.ndarray) -> np.ndarray:
        """Minus the gradient of the logistic risk at W, times n and a positive number that keeps it in range."""
        log_s, below = self.shares(W)
        mean = (attention(self.trial, W) * self.trial.gamma).sum(axis=1)
        weights = np.exp(log_s - log_s.max()) * below / (1 + np.exp(mean))[self.rows]
        return np.tensordot(weights, self.matrices, axes=1)


def cases(count: int, sizes: tuple[tuple[int, int, int], ...]) -> list[tuple[theory.Trial, theory.LocalOptimality]]:
    """Locally optimal directions of random instances, not only those of the optimal tokens; lengths of all sizes."""
    instances = []
    for seed, (n, T, d) in product(range(count), sizes):
        data, v = random_data(None, n, T, d, seed=seed)
        rng = np.random.default_rng(seed)
        tokens = data.tokens * rng.uniform(0.7, 1.5, (n, T, 1))
        queries = data.queries * rng.uniform(0.5, 2.0, (n, 1))
        trial = theory.Trial.of(TokenData(tokens, queries, data.labels), 1.7 * v)
        instances += [(trial, direction) for direction in theory.explore(trial).directions]
    return instances


@cache
def directions() -> list[tuple[theory.Trial, theory.LocalOptimality]]:
    return cases(8, ((2, 3, 3), (3, 2, 5), (2, 4, 2)))


# --- smoothness ---


@pytest.mark.parametrize("loss", LOSSES)
def test_l_w_bounds_what_finite_differences_see(loss: str) -> None:
    rng = np.random.default_rng(0)
    for seed in range(6):
        trial = trial_of(seed, 1 + seed % 4, 4, 3)
        bound = theory.smoothness(trial, loss).L_W
        for scale, length in product((0.0, 1.0, 5.0, 20.0), (1e-3, 1.0)):
            at, step = (rng.standard_normal((3, 3)) * size for size in (scale, length))
            change = initial_gradient(trial, loss, W=at + step) - initial_gradient(trial, loss, W=at)
            # The Hessian form is at most a quarter of L_W, so the gradient's change is too.
            assert np.linalg.norm(change) <= bound / 4 * np.linalg.norm(step)


def test_l_w_is_what_the_formula_says() -> None:
    """One token pair on the axes: |X| = 3, |z| = 7, |v| = 5 and u up to 15, hence M1 = 1, M0 = 1/4."""
    data = TokenData(np.array([[[3.0, 0.0], [0.0, 1.0]]] * 2), [[7.0, 0.0]] * 2, [1.0, -1.0])
    trial = theory.Trial.of(data, [5.0, 0.0])
    assert pytest.approx(5 * 49 * 27 * (15 / 4 + 3), rel=1e-14) == theory.smoothness(trial).L_W
    # The exponential loss: M0 = M1 = e^15.
    assert pytest.approx(5 * 49 * 27 * np.exp(15) * 18, rel=1e-13) == theory.smoothness(trial, "exponential").L_W
    K, Q = np.diag([3.0, 1.0]), np.diag([0.5, 7.0])
    constants = theory.smoothness(trial, K=K, Q=Q)
    assert pytest.approx(49 * constants.L_W) == constants.L_K
    assert pytest.approx(9 * constants.L_W) == constants.L_Q


@pytest.mark.parametrize("size", [0.1, 1.0, 30.0])
def test_l_k_and_l_q_bound_what_finite_differences_see(size: float) -> None:
    rng = np.random.default_rng(1)
    for seed in range(6):
        trial = trial_of(seed, 3, 4, 3)
        K, Q = size * rng.standard_normal((3, 2)), size * rng.standard_normal((3, 2))
        constants = theory.smoothness(trial, K=K, Q=Q)
        assert constants.L_K is not None
        assert constants.L_Q is not None
        for length in (1e-4, 1e-2, 1.0):
            step = rng.standard_normal((3, 2)) * length
            in_K = (initial_gradient(trial, W=(K + step) @ Q.T) - initial_gradient(trial, W=K @ Q.T)) @ Q
            assert np.linalg.norm(in_K) <= constants.L_K * np.linalg.norm(step)
            in_Q = (initial_gradient(trial, W=K @ (Q + step).T) - initial_gradient(trial, W=K @ Q.T)).T @ K
            assert np.linalg.norm(in_Q) <= constants.L_Q * np.linalg.norm(step)


@pytest.mark.parametrize("step", [2.0, 4.0])
def test_the_descent_inequality_holds_up_to_four_over_l_w(step: float) -> None:
    """Lemma 8 of v1 asks for 2/L_W at most; the Hessian form, at most L_W/4, allows 4/L_W."""
    rng = np.random.default_rng(2)
    for seed in range(150):
        trial = trial_of(seed, 1 + seed % 3, 2 + seed % 4, 2 + seed % 3)
        d = trial.tokens.shape[2]
        eta = step / theory.smoothness(trial).L_W
        W = rng.standard_normal((d, d)) * rng.choice([0.1, 1.0, 4.0])
        gradient = initial_gradient(trial, W=W)
        decrease = risk(trial, W) - risk(trial, W - eta * gradient)
        # Risks below 2 are rounded by a few eps each.
        assert decrease >= eta / 2 * (gradient**2).sum() - 1e-15


@pytest.mark.parametrize("loss", LOSSES)
def test_the_range_of_slopes(loss: str) -> None:
    at = np.linspace(-1.5, 2.5, 4001)
    size = -np.gradient(LOSSES[loss](at), at, edge_order=2)
    # Second differences of a step of 1e-3: an error of 1e-6 times the third derivative, at most e^1.5.
    assert slope_range(loss, -1.5, 2.5) == pytest.approx((size.min(), size.max()), abs=1e-5)


def test_the_range_of_slopes_of_a_callable_covers_that_of_its_closed_form() -> None:
    smallest, largest = slope_range(lambda u: torch.log1p(torch.exp(-u)), -0.5, 2.0)
    instance = slope_range("logistic", -0.5, 2.0)
    assert smallest <= instance[0] * (1 + 1e-12)
    assert largest >= instance[1] * (1 - 1e-12)


def test_loss_constants_bound_slope_and_curvature() -> None:
    at = np.linspace(-3, 3, 6001)
    for loss, value in LOSSES.items():
        constants = theory.loss_constants(loss, 3.0)
        slope = np.gradient(value(at), at)
        assert (np.abs(slope[1:-1]) <= constants.M1 * (1 + 1e-6)).all()
        assert (np.abs(np.diff(slope[1:-1])) <= constants.M0 * np.diff(at[1:-1]) + 1e-9).all()
    assert pytest.approx(np.exp(3.0)) == theory.loss_constants("exponential", 3.0).M1
    assert theory.loss_constants("correlation", 3.0).M0 == 0.0
    nothing = theory.loss_constants("exponential", 0.0)
    assert (nothing.M0, nothing.M1) == (1.0, 1.0)


# --- local convergence ---


def test_the_constants_of_the_counterexample_by_hand() -> None:
    """(1, 0) selects (0, 1): margins 1 and 2, longest token sqrt(5), scores (1, 0) and (1.5, 0), a lead of 1."""
    tokens = np.array([[[1.0, 0.0], [0.0, 0.0]], [[-2.0, 1.0], [0.0, 0.0]]])
    trial = theory.Trial.of(TokenData(tokens, np.array([[1.0, 0.0], [1.0, 0.0]]), np.ones(2)), [1.0, 3.5])
    constants = theory.local_constants(trial, theory.local_optimality(trial, [0, 1]))
    assert constants.Gamma == pytest.approx(1.5)
    assert constants.gap == pytest.approx(1.0)
    assert pytest.approx(2 * np.log(64 * 2 * 1.5 * np.sqrt(5))) == constants.R
    # J = 2; scores in [0, 1.5] give slopes between 1/(1 + e^1.5) and 1/2.
    K = 4 * 1.5 * (1 + np.exp(1.5)) / 2
    sine_squared = (1 / 160) * (2 - 1 / 160) / 4
    assert constants.radius == pytest.approx(np.log(4 * 2 * K / np.e) / sine_squared, rel=1e-12)


def test_the_constants_of_a_token_close_to_the_margin_by_hand() -> None:
    """(1, 0) selects (0, 1): margins 1 and 1.2, so delta = 1/10; scores (2, 0) and (4.6, 0), a lead of 2."""
    tokens = np.array([[[1.0, 0.0], [0.0, 0.0]], [[-1.2, 1.0], [0.0, 0.0]]])
    trial = theory.Trial.of(TokenData(tokens, np.array([[1.0, 0.0], [1.0, 0.0]]), np.ones(2)), [2.0, 7.0])
    constants = theory.local_constants(trial, theory.local_optimality(trial, [0, 1]))
    A = np.sqrt(2.44)
    assert constants.delta == pytest.approx(0.1)
    assert pytest.approx(A) == constants.A
    assert constants.mu == pytest.approx((0.1 / A) ** 2 / 8)
    assert pytest.approx(10 * np.log(64 * 2 * 4.6 * A / 2.0)) == constants.R
    # J = 2; scores in [0, 4.6] give slopes between 1/(1 + e^4.6) and 1/2.
    K = 4 * 4.6 / 2 * (1 + np.exp(4.6)) / 2
    assert constants.radius == pytest.approx(4 * np.log(4 * 2 * K / np.e) / (constants.mu * (2 - constants.mu)))


def test_gamma_is_a_difference_of_scores() -> None:
    """Scores 1 and -1 differ by 2; a shift of all of them by 10 changes neither Gamma nor R."""
    tokens, queries = np.array([[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.3]]]), [[1.0, 0.5]]
    radii = []
    for shift in (0.0, 10.0, -10.0):
        values = np.array([[[1.0], [-1.0], [0.5]]]) + shift
        trial = theory.Trial.of(TokenData(tokens, queries, [1.0], values=values), [1.0])
        constants = theory.local_constants(trial, theory.local_optimality(trial, [0]))
        assert constants.Gamma == pytest.approx(2.0)
        radii.append(constants.R)
    assert radii == pytest.approx([radii[0]] * 3, rel=1e-12)


def test_the_radius_contains_what_its_proof_asks_for() -> None:
    """Steps 0 (i) to (iv) of docs/theory.md, at p = Theta times the radius."""
    for trial, direction in directions():
        constants = theory.local_constants(trial, direction)
        low, high = float(trial.gamma.min()), float(trial.gamma.max())
        slow, steep = slope_range("logistic", low, high)
        J, K = int(direction.solution.problem.rejected.sum()), 4 * constants.Gamma * steep / (constants.gap * slow)
        T, A, p = trial.mask.shape[1], constants.A, constants.Theta * constants.radius
        sine = np.sqrt(constants.mu * (2 - constants.mu)) / 2
        assert 2 * T * np.exp(-p / 2) <= constants.gap / constants.Gamma
        assert p * sine**2 == pytest.approx(np.log(4 * J * K / np.e))
        assert 8 * J * K * A * np.exp(-p * constants.delta) <= sine
        assert 3.8 * J * K * A * T * np.exp(-p / 2) <= 1
        assert A >= 0.5


def test_the_constants_bound_what_they_are_said_to_bound() -> None:
    rng = np.random.default_rng(3)
    far_count = 0
    for trial, direction in directions():
        constants, rows = theory.local_constants(trial, direction), Constraints(trial, direction)
        W = direction.W
        assert constants.Theta == pytest.approx(1 / np.linalg.norm(W), rel=1e-9)
        gamma = trial.gamma
        assert constants.Gamma == max(
            abs(gamma[i, t] - gamma[i, s])
            for i in range(len(gamma))
            for t, s in product(range(gamma.shape[1]), repeat=2)
        )
        leads = gamma[rows.rows, direction.selected[rows.rows]] - gamma[rows.rows, rows.columns]
        assert constants.gap == leads[rows.near].min() > 0
        margins = rows.margins(W)
        if (~rows.near).any():
            far_count += 1
            assert margins[~rows.near].min() == pytest.approx(1 + 2 * constants.delta, rel=1e-9)
        else:
            assert constants.delta == np.inf
        unit = rng.standard_normal((200, *W.shape))
        unit /= np.linalg.norm(unit, axis=(1, 2), keepdims=True)
        logits = np.einsum("itd,kde,ie->kit", trial.tokens, unit, trial.queries) / constants.Theta
        assert np.abs(logits).max() <= constants.A
    assert far_count > 20
    assert len(directions()) - far_count > 5


def test_margins_inside_the_cone_are_those_of_lemma_13() -> None:
    """(68): neighbours keep margins in [1/2, 3/2], others exceed 1 + delta, for V of the norm of W^mm in the cone."""
    rng = np.random.default_rng(4)
    for trial, direction in directions():
        constants, rows = theory.local_constants(trial, direction), Constraints(trial, direction)
        cosine = 1 - constants.mu
        for _ in range(50):
            V = (cosine * rows.unit + np.sqrt(1 - cosine**2) * rows.direction_beside(rng)) / constants.Theta
            margins = rows.margins(V)
            slack = 1e-9 * np.abs(margins).max()
            assert (np.abs(margins[rows.near] - 1) <= min(0.5, constants.delta) + slack).all()
            assert (margins[~rows.near] >= 1 + constants.delta - slack).all()


def test_no_stationary_point_beyond_r_where_every_sequence_has_a_neighbour() -> None:
    """(75): sums of (1 - s_alpha) |l'| times leads enclose -<grad L(W), V>, for W in C_{mu,R} and V in the cone."""
    rng, count = np.random.default_rng(5), 0
    for trial, direction in directions():
        if not direction.neighbours.any(axis=1).all():
            continue
        constants, rows = theory.local_constants(trial, direction), Constraints(trial, direction)
        n = len(trial.labels)
        leads = trial.gamma[np.arange(n), direction.selected][:, None] - trial.gamma
        smallest = np.min(leads, axis=1, where=direction.neighbours, initial=np.inf)
        largest = np.max(leads, axis=1, where=direction.neighbours, initial=-np.inf)
        cosine = 1 - constants.mu
        for _ in range(20):
            W, V = (cosine * rows.unit + np.sqrt(1 - cosine**2) * rows.direction_beside(rng) for _ in range(2))
            log_s, below = rows.shares(constants.R * W)
            log_s = log_s - log_s.max()
            mean = (attention(trial, constants.R * W) * trial.gamma).sum(axis=1)
            slope = 1 / (1 + np.exp(mean))
            q = np.bincount(rows.rows, np.exp(log_s), n)  # 1 - s_alpha, up to a factor common to all
            along = (slope[rows.rows] * np.exp(log_s) * below * rows.margins(V / constants.Theta)).sum()
            assert (slope * q * smallest).sum() / 8 <= along <= 2 * (slope * q * largest).sum()
        count += 1
    assert count > 20


def test_the_pull_is_the_gradient() -> None:
    rng = np.random.default_rng(6)
    for trial, direction in directions()[:10]:
        rows = Constraints(trial, direction)
        W = 3 * rng.standard_normal(rows.unit.shape)
        pull, gradient = rows.pull(W), initial_gradient(trial, W=W)
        assert pull / np.linalg.norm(pull) == pytest.approx(-gradient / np.linalg.norm(gradient), abs=1e-9)


def turn(rows: Constraints, W: np.ndarray) -> float:
    """How fast minus the gradient turns W towards the direction, as a share of its norm."""
    pull, size = rows.pull(W), float(np.linalg.norm(W))
    cosine = float((W * rows.unit).sum()) / size
    towards = (rows.unit - cosine * W / size) / np.sqrt(1 - cosine**2)
    return float((pull * towards).sum() / np.linalg.norm(pull))


def test_beyond_the_radius_the_gradient_turns_to_the_direction_and_grows_the_norm() -> None:
    """The inequalities behind the theorem of docs/theory.md, from half the cone's sine to its edge."""
    rng = np.random.default_rng(7)
    for trial, direction in directions():
        constants, rows = theory.local_constants(trial, direction), Constraints(trial, direction)
        edge = np.sqrt(constants.mu * (2 - constants.mu))
        slopes = slope_range("logistic", float(trial.gamma.min()), float(trial.gamma.max()))
        J, K = len(rows.rows), 4 * constants.Gamma * slopes[1] / (constants.gap * slopes[0])
        for sine in edge * np.array([0.5, 0.75, 1.0]):
            for _ in range(10):
                W = constants.radius * (np.sqrt(1 - sine**2) * rows.unit + sine * rows.direction_beside(rng))
                # G_Q >= sin(theta) ||G|| / (2 H) with H = 2 J K A
                assert turn(rows, W) >= sine / (4 * J * K * constants.A)
                assert (rows.pull(W) * W).sum() > 0


def test_from_the_radius_of_lemma_13_the_gradient_may_turn_away() -> None:
    """Every sequence has a neighbour here, so the published constants apply; they do not keep descent in the cone."""
    rng, leaving, count = np.random.default_rng(8), 0, 0
    for trial, direction in directions():
        if not direction.neighbours.any(axis=1).all():
            continue
        constants, rows = theory.local_constants(trial, direction), Constraints(trial, direction)
        cosine = 1 - constants.mu
        asides = [rows.direction_beside(rng) for _ in range(100)]
        count += 1
        leaving += any(
            turn(rows, constants.R * (cosine * rows.unit + np.sqrt(1 - cosine**2) * P)) < -1e-6 for P in asides
        )
    print(f"the gradient turns away on the edge of {leaving} of {count} cones")
    assert leaving >= count / 5


def test_a_start_between_the_two_radii_is_promised_nothing() -> None:
    for trial, direction in directions()[:6]:
        constants = theory.local_constants(trial, direction)
        assert constants.radius > constants.R
        unit = direction.W / np.linalg.norm(direction.W)
        landscape = theory.explore(trial)
        within = theory.predict(trial, init=1.01 * constants.radius * unit, landscape=landscape)
        assert (within.directions[0].selected == direction.selected).all()
        assert "Theorem 7" in within.rests_on
        between = theory.predict(trial, init=0.99 * constants.radius * unit, landscape=landscape)
        assert between.outcome is theory.Outcome.NO_GUARANTEE


def test_a_loss_that_is_looked_at_on_a_grid_proves_nothing() -> None:
    trial, direction = directions()[0]
    log_loss = lambda u: torch.log1p(torch.exp(-u))  # noqa: E731
    condition = theory.condition_a(trial, log_loss)
    assert condition.holds is None
    assert condition.how == "sampled"
    start = 10 * theory.local_constants(trial, direction).radius * direction.W
    assert theory.predict(trial, init=start, loss=log_loss).outcome is theory.Outcome.NO_GUARANTEE
