"""What a claim may say of W and multipliers, and by how much it may miss: every comparison from both sides."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import exact as optimum
from attsvm import SelectionProblem, Status, norms, solve
from attsvm import check as checker
from attsvm.core.error_free import UNIT
from attsvm.core.gap import relative_gap
from attsvm.core.norms import FROBENIUS, Mahalanobis, Norm, get_norm
from attsvm.proofs import Claim, Proof, prove, recheck
from attsvm.proofs import claim as claim_module
from attsvm.proofs.certificate import FarkasCertificate
from attsvm.proofs.certified import SAFE_NORM, certify
from attsvm.proofs.claim import AGREEMENT
from attsvm.proofs.dyadic import Dyadic
from attsvm.proofs.objective import Regularisation
from attsvm.proofs.program import Program
from attsvm.proofs.proof import interval, interval_statement, unproven
from attsvm.proofs.prove import examine
from attsvm.proofs.witness import _adjoint
from exact import dual_norm_above, norm_above
from problems import FAMILIES, NAMED, single


def claim(norm: str | float = "frobenius", name: str = "counterexample", **changes) -> Claim:
    """A claim that holds, by hand for the counterexample, with what is said of it changed."""
    problem = NAMED[name]().problem
    solution = solve(problem, norm)
    measure: Norm = get_norm(norm)
    pair = certify(Program(problem, measure), solution.certified.W, solution.certified.dual, sharp=True)
    return Claim(problem, measure, Status.OPTIMAL, replace(pair, **changes), None, 1e-9)


# --- proofs ---


def test_the_gap_of_a_proof() -> None:
    def gap(low, high) -> float:
        return Proof(True, low, high, "", "").gap

    assert gap(2.0, 3.0) == 0.5
    assert gap(Fraction(2), Fraction(3)) == 0.5
    assert gap(math.inf, math.inf) == gap(0.0, 0.0) == 0.0
    assert gap(0.0, 3.0) == gap(-1.0, 3.0) == gap(2.0, math.inf) == math.inf


def test_the_gap_of_bounds_that_prove_nothing_is_infinite() -> None:
    for low, high in ((0.0, 3.0), (-1.0, 3.0), (2.0, math.inf), (math.inf, math.inf)):
        assert relative_gap(low, high) == math.inf
    assert relative_gap(2.0, 3.0) == 0.5
    assert relative_gap(0.0, 0.0) == 0.0


def test_only_what_is_proven_is_true() -> None:
    assert Proof(True, 1.0, 1.0, "", "")
    failure = unproven("the sky fell.", "by hand", low=1.0)
    assert not failure
    assert failure.statement.startswith("Not proven: the sky fell.")
    assert failure.low == 1.0
    assert failure.high == math.inf
    assert unproven("it rained.", "by hand").low == 0


def test_an_interval_is_said_with_the_digits_that_tell_its_ends_apart() -> None:
    for value in (Fraction(1, 3), Fraction(1, 10), Fraction(2, 3), Fraction(10**20 + 1), Fraction(5, 4)):
        text = interval_statement("nuclear", value, value)
        low, high = (Fraction(part) for part in text[text.index("[") + 1 : text.index("]")].split(", "))
        assert low <= value <= high
        assert high - low <= value * Fraction(1, 2**51)
        assert "smallest nuclear norm" in text
    assert interval_statement("max", 1.25, math.inf).endswith("has a max norm of at least 1.25.")


def test_an_end_of_an_interval_that_is_a_short_decimal_is_written_as_it_is() -> None:
    assert interval(Fraction(5, 4), 1.25) == "[1.25, 1.25]"
    assert interval(1.0, math.inf) == "[1, inf]"
    beyond = Fraction(10) ** 400
    assert interval(beyond, beyond) == f"[{sys.float_info.max:.17g}, inf]"


# --- claims from both sides ---


@pytest.mark.parametrize("check", [recheck, prove])
@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "max", 1.5])
def test_numbers_may_differ_by_rounding_and_no_more(norm: str | float, check) -> None:
    honest = claim(norm)
    assert check(honest), check(honest).statement
    pair = honest.certified
    grains = {"objective": 8 * (pair.W.size + 8) * UNIT, "lower_bound": AGREEMENT, "upper_bound": AGREEMENT}
    for field, grain in grains.items():
        value = getattr(pair, field)
        for factor, fine in ((1 + 0.3 * grain, True), (1 - 0.3 * grain, True)):
            assert bool(check(replace(honest, certified=replace(pair, **{field: value * factor})))) == fine, field
        wrong = 1 - 1e-10 if field == "upper_bound" else 1 + 1e-10
        for status in (Status.OPTIMAL, Status.UNDECIDED):
            statement = replace(honest, status=status, certified=replace(pair, **{field: value * wrong}))
            assert not check(statement), field
    assert not check(replace(honest, certified=replace(pair, objective=pair.objective * (1 - 1e-10))))
    # Claiming less than what is proved is no fault.
    if norm != "frobenius":  # whose bound is a scale that multipliers may have, too
        assert check(replace(honest, certified=replace(pair, lower_bound=pair.lower_bound * (1 - 1e-10))))
    assert check(replace(honest, certified=replace(pair, upper_bound=pair.upper_bound * (1 + 1e-10))))


@pytest.mark.parametrize("check", [recheck, prove])
@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_an_objective_with_losses_may_differ_by_rounding_and_no_more(norm: Any, check: Any) -> None:
    problem = NAMED["counterexample"]().problem
    solution = solve(problem, norm, C=0.1)
    pair = solution.certified
    honest = Claim(problem, get_norm(norm), Status.OPTIMAL, pair, None, 1e-9, solution.regularisation)
    assert pair.primal is not None
    grain = 16 * (pair.W.size + 8) * UNIT
    for change, fine in ((0.3 * grain, True), (-0.3 * grain, True), (1e-10, False), (-1e-10, False)):
        proof = check(replace(honest, certified=replace(pair, primal=pair.primal * (1 + change))))
        assert bool(proof) == fine, proof.statement
        assert fine or "the objective at W is said to be" in proof.statement


@pytest.mark.parametrize("check", [recheck, prove])
def test_the_gap_is_held_to_the_tolerance(check) -> None:
    """A W that is longer by a thousandth of what the optimum promises, with bounds to match."""
    problem = NAMED["counterexample"]().problem
    dual = np.array([[0.0, 7.0], [0.0, 3.0]])
    W = np.array([[1.0, 1e-3], [3.0, 0.0]])
    pair = certify(Program(problem, FROBENIUS), W, dual, sharp=True)
    gap = float(np.linalg.norm(W)) / math.sqrt(10.0) - 1
    for tol, fine in ((1.01 * gap, True), (0.99 * gap, False)):
        statement = Claim(problem, FROBENIUS, Status.OPTIMAL, pair, None, tol)
        assert bool(check(statement)) == fine
        assert check(replace(statement, status=Status.UNDECIDED))
    # What is said of the gap counts as well as what is proved.
    wide = Claim(problem, FROBENIUS, Status.OPTIMAL, replace(claim().certified, upper_bound=4.0), None, 1e-9)
    assert not check(wide)
    assert "the gap is" in check(wide).statement
    assert check(replace(wide, status=Status.UNDECIDED))


@pytest.mark.parametrize("check", [recheck, prove])
def test_margins_are_those_of_w_and_the_smallest_is_one(check) -> None:
    honest = claim()
    margins = honest.certified.margins
    for entry in ((0, 1), (1, 1)):
        for change, fine in ((1e-15, True), (1e-9, False), (-1e-9, False)):
            shifted_margins = margins.copy()
            shifted_margins[entry] += change
            assert bool(check(replace(honest, certified=replace(honest.certified, margins=shifted_margins)))) == fine
    # What is said of the selected tokens says nothing.
    free = margins.copy()
    free[:, 0] = 5.0
    assert check(replace(honest, certified=replace(honest.certified, margins=free)))
    shape = replace(honest.certified, margins=margins[:, :1])
    assert "shape" in check(replace(honest, certified=shape)).statement
    twice = replace(
        honest.certified, W=2 * honest.certified.W, margins=2 * margins, objective=2 * honest.certified.objective,
    )  # fmt: skip
    checks = check(replace(honest, certified=twice, status=Status.UNDECIDED))
    assert not checks
    assert "promises one" in checks.statement


def test_margins_may_miss_those_of_w_by_what_both_sums_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a unit of 1e-6: twice the d + dz roundings of |delta||W||z| are allowed, and not three times."""
    unit = 1e-6
    problem = FAMILIES["planted"].make(np.random.default_rng(0), 3, 3, 12)
    solution = solve(problem)
    honest = Claim(problem, FROBENIUS, Status.OPTIMAL, solution.certified, None, 1e-9)
    assert honest._margins_fault() is None
    monkeypatch.setattr(claim_module, "gamma", lambda k: k * unit)
    entry = tuple(np.argwhere(problem.rejected)[0])
    size = float(np.linalg.norm(solution.certified.W) * problem.lengths[entry])
    for count, fine in ((2 * 24, True), (2 * (24 + 12), False)):
        shifted_margins = np.array(solution.certified.margins)
        shifted_margins[entry] += count * unit * size  # upwards: other margins are one as well
        claim = replace(honest, certified=replace(solution.certified, margins=shifted_margins))
        assert (claim._margins_fault() is None) == fine


@pytest.mark.parametrize("check", [recheck, prove])
@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "max"])
def test_multipliers_have_one_of_the_scales_of_the_convention(norm: str, check) -> None:
    honest = claim(norm)
    dual = honest.certified.dual
    for factor, fine in ((1.0, True), (1 + 1e-9, False), (0.5, False)):
        statement = replace(honest, certified=replace(honest.certified, dual=factor * dual))
        assert bool(check(statement)) == fine
    if norm == "frobenius":
        # Frobenius multipliers may be scaled to dual norm one instead.
        unit = dual / float(np.linalg.norm(honest.problem.adjoint(dual)))
        assert check(replace(honest, certified=replace(honest.certified, dual=unit)))


def test_the_scale_of_multipliers_may_miss_the_roundings_of_a_matrix_of_one_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a unit of 1e-6: four times the roundings of the sum, and sixteen for the entry and eight more."""
    unit, problem = 1e-6, single([[1.0]])
    pair = certify(Program(problem, FROBENIUS), np.ones((1, 1)), np.array([[0.0, 1.0]]), sharp=True)
    monkeypatch.setattr(claim_module, "gamma", lambda k: k * unit)
    reach = 4 * (sum(pair.dual.shape) + 16) + 16 * (1 + 8)
    for units, fine in ((0, True), (reach - 5, True), (5 - reach, True), (reach + 20, False), (-20 - reach, False)):
        dual = pair.dual * (1 + units * unit)
        near = Claim(problem, FROBENIUS, Status.OPTIMAL, replace(pair, dual=dual), None, 1e-9)
        assert (near._dual_fault() is None) is fine


def test_what_is_infeasible_or_empty_is_claimed_with_what_belongs_to_it() -> None:
    problem = NAMED["midpoint"]().problem
    solution = solve(problem)
    claim = Claim(problem, FROBENIUS, Status.INFEASIBLE, solution.certified, solution.certificate, 1e-9)
    for check in (recheck, prove):
        proof = check(claim)
        assert proof
        assert proof.low == proof.high == math.inf
        assert not check(replace(claim, certificate=None))
        assert not check(replace(claim, status=Status.OPTIMAL))
        certificate = FarkasCertificate(problem, np.array([[0.0, 1.0, 0.0, 0.0]]))
        assert not check(replace(claim, certificate=certificate))
    for name in ("one_token", "everything_selected"):
        nothing = solve(NAMED[name]().problem)
        empty = Claim(nothing.problem, FROBENIUS, Status.OPTIMAL, nothing.certified, None, 1e-9)
        for check in (recheck, prove):
            assert check(empty)
            assert check(empty).low == check(empty).high == 0
            assert not check(replace(empty, certified=replace(nothing.certified, W=nothing.certified.W + 1.0)))
            assert not check(replace(empty, certified=replace(nothing.certified, objective=1.0)))


def test_a_contradiction_counts_the_multipliers_that_are_not_zero() -> None:
    """One token between two others: their multipliers are equal, and its own is zero."""
    problem = SelectionProblem([[[0.0], [1.0], [-1.0]]], [[1.0]], [0])
    for dual in ([[0.0, 1.0, 1.0]], [[-0.0, 0.5, 0.5]]):
        solution = solve(problem)
        certificate = FarkasCertificate(problem, np.array(dual))
        proof = prove(Claim(problem, FROBENIUS, Status.INFEASIBLE, solution.certified, certificate, 1e-9))
        assert proof.statement == "No W satisfies the constraints: 2 multipliers cancel exactly."


@pytest.mark.parametrize("check", [recheck, prove])
def test_multipliers_or_a_w_that_prove_nothing_leave_an_open_interval(check) -> None:
    honest = claim()
    pair = honest.certified
    for dual in (0 * pair.dual, -pair.dual, np.full_like(pair.dual, np.nan)):
        for lower in (0.0, pair.lower_bound):
            pair_of_dual = replace(pair, dual=dual, lower_bound=lower)
            proof = check(replace(honest, certified=pair_of_dual, status=Status.UNDECIDED))
            assert not proof
            assert proof.low == 0
            assert float(proof.high) == pytest.approx(math.sqrt(10.0))
            assert "bound nothing" in proof.statement
    for W in (-pair.W, 0 * pair.W, np.full_like(pair.W, np.nan)):
        proof = check(replace(honest, certified=replace(pair, W=W), status=Status.UNDECIDED))
        assert not proof
        assert proof.high == math.inf
        assert float(proof.low) == pytest.approx(math.sqrt(10.0))


def test_a_w_of_margin_zero_takes_nothing_from_the_multipliers() -> None:
    """W = (0, 1) misses the tie by its length; the multipliers alone bound the norm by the root of two."""
    problem = NAMED["tie_forces_a_detour"]().problem
    pair = certify(Program(problem, FROBENIUS), np.array([[1.0], [-1.0]]), np.array([[0.0, 1.0, 2.0]]), sharp=True)
    other = replace(pair, W=np.array([[0.0], [1.0]]))
    proof = recheck(Claim(problem, FROBENIUS, Status.UNDECIDED, other, None, 1e-9))
    assert not proof
    assert proof.high == math.inf
    assert float(proof.low) == pytest.approx(math.sqrt(2.0), rel=1e-13)


def test_an_objective_that_is_zero_to_rounding_has_no_gap() -> None:
    """The prior has a margin of one, so that its distance is zero and the bound of W some rounding."""
    solution = solve(single([[1.0, 0.0]]), prior=np.array([[1.0], [0.3]]))
    assert solution.status is Status.OPTIMAL
    proof = solution.verify()
    assert proof.low == 0 < proof.high < 1e-14
    assert proof, proof.statement


def test_margins_beside_a_prior_or_with_losses_are_rounded_by_their_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a unit of 1e-6: eight units of |delta||W||z| lengthen W by as much, or cost C times what falls short."""
    unit, problem = 1e-6, single([[3.0, 4.0], [0.0, 30.0]])
    lengths = np.array([5.0, 30.0])
    monkeypatch.setattr(claim_module, "gamma", lambda k: k * unit)
    hard = solve(problem, "max", prior=np.array([[0.1], [0.2]]))
    near = Claim(problem, hard.norm, hard.status, hard.certified, None, 1e-9, hard.regularisation)
    W = hard.certified.W
    longer = 8 * unit * np.linalg.norm(W) * lengths.max() * np.abs(W).max()
    assert near._margin_rounding() == pytest.approx(longer, rel=1e-9)
    soft = solve(problem, "max", C=0.01)
    near = Claim(problem, soft.norm, soft.status, soft.certified, None, 1e-9, soft.regularisation)
    short, error = 1 - soft.certified.margins[0, 1:], 8 * unit * np.linalg.norm(soft.certified.W) * lengths
    assert short.max() > 0.1
    charge = 0.01 * (np.maximum(short + error, 0) - np.maximum(short, 0)).sum()
    assert near._margin_rounding() == pytest.approx(charge, rel=1e-6)


def test_only_hard_margins_have_proofs_of_this_kind() -> None:
    soft = solve(FAMILIES["planted"].make(np.random.default_rng(0), 4, 4, 4), C=1.0)
    claim = Claim(soft.problem, FROBENIUS, Status.OPTIMAL, soft.certified, None, 1e-9)
    for check in (recheck, prove):
        assert "hard margins" in check(claim).statement


def test_shapes_and_residuals_are_looked_at() -> None:
    honest = claim()
    pair = honest.certified
    for changes, shapes in (({"W": pair.W[:, :1]}, ((2, 1), (2, 2))), ({"dual": pair.dual[:, :1]}, ((2, 2), (2, 1)))):
        for check in (recheck, prove):
            statement = check(replace(honest, certified=replace(pair, **changes))).statement
            assert statement == f"Not proven: W has shape {shapes[0]} and the multipliers {shapes[1]}."
    # A tie that is missed by more than twice what is said.
    problem = SelectionProblem([[[0.0, 0.0], [1.0, 1.0], [-1.0, 0.0]]], [[1.0]], np.array([[True, True, False]]))
    W, dual = np.array([[1.0], [-1.0]]), np.array([[0.0, 1.0, 2.0]])
    tied = Claim(problem, FROBENIUS, Status.OPTIMAL, certify(Program(problem, FROBENIUS), W, dual), None, 1e-9)
    assert recheck(tied)
    assert prove(tied)
    rounded = replace(tied.certified, tie_residual=1e-10)
    assert recheck(replace(tied, certified=rounded))


def test_a_residual_of_ties_is_said_and_may_be_half_of_what_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from attsvm.proofs import bounds, certified

    monkeypatch.setattr(bounds, "tie_move", lambda *arguments: math.inf)
    problem = NAMED["tie_forces_a_detour"]().problem
    W, dual = np.array([[1.0], [-1.0 + 1e-10]]), np.array([[0.0, 1.0, 2.0]])
    monkeypatch.setattr(certified, "onto_ties", lambda problem, W, margins: W)
    pair = certify(Program(problem, FROBENIUS), W, dual, sharp=True)
    assert pair.tie_residual == pytest.approx(1e-10, rel=1e-3)
    claim = Claim(problem, FROBENIUS, Status.OPTIMAL, pair, None, 1e-9)
    proof = recheck(claim)
    assert proof, proof.statement
    assert "Scores of tied tokens may differ by 1e-10 of the margin." in proof.statement
    for share, fine in ((0.6, True), (0.4, False)):
        less = replace(claim, certified=replace(pair, tie_residual=share * pair.tie_residual))
        assert bool(recheck(less)) == fine


# --- exact bounds ---


def test_exact_bounds_by_hand() -> None:
    """Differences (3, 4) with query (0, 2): margin 2 (3 w_1 + 4 w_2), |W| = 1/10 and its multiplier 1/100."""
    problem = single([[3.0, 4.0]], (0.0, 2.0))
    W = np.array([[0.0, 3.0], [0.0, 4.0]])
    high, _ = optimum.upper_bound(problem, FROBENIUS, W)
    assert high is not None
    assert high == Fraction(5, 50)
    assert optimum.lower_bound(problem, FROBENIUS, np.array([[9.0, 2.0]])) == Fraction(2, 20)
    assert optimum.lower_bound(problem, FROBENIUS, np.array([[9.0, -2.0]])) == 0
    assert optimum.lower_bound(problem, FROBENIUS, np.full((1, 2), np.nan)) == 0
    assert optimum.upper_bound(problem, FROBENIUS, -W)[0] is None
    assert optimum.upper_bound(problem, FROBENIUS, np.full((2, 2), np.inf))[0] is None
    cancelling = NAMED["midpoint"]().problem
    assert optimum.lower_bound(cancelling, FROBENIUS, np.array([[0.0, 1.0, 1.0, 0.0]])) == 0
    assert optimum.upper_bound(NAMED["one_token"]().problem, FROBENIUS, np.ones((2, 2))) == (Fraction(0), "")


def test_margins_that_a_near_tie_may_change_are_reduced_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reach of r lowers a margin of one by r |delta||z| and lengthens W by it."""
    problem, W = NAMED["tie_forces_a_detour"]().problem, np.array([[1.0], [-1.0]])
    certificate = optimum.certificate(problem, FROBENIUS, W, np.zeros(problem.mask.shape))
    for reach in (Fraction(1, 8), Fraction(3, 8)):
        monkeypatch.setattr(checker.Certificate, "_tie_radius", lambda self, margins, reach=reach: reach)
        high, _, radius = certificate.upper()
        assert float(high) == pytest.approx((math.sqrt(2.0) + float(reach)) / (1 - float(reach)), rel=1e-9)
        assert radius == reach / (1 - reach)
    monkeypatch.setattr(checker.Certificate, "_tie_radius", lambda self, margins: Fraction(2))
    with pytest.raises(checker.Rejected, match="a margin of W is not positive"):
        certificate.upper()


def test_the_reach_of_ties_grows_with_w_beside_a_prior(monkeypatch: pytest.MonkeyPatch) -> None:
    """W is lengthened by 1/(1 - r), the reach r with it, and the prior is not."""
    problem, W = NAMED["tie_forces_a_detour"]().problem, np.array([[1.0], [-1.0]])
    asked = Regularisation(None, "hinge", np.array([[0.5], [2.0]]))
    certificate = optimum.certificate(problem, FROBENIUS, W, np.zeros(problem.mask.shape), asked)
    for reach in (Fraction(1, 8), Fraction(3, 8)):
        monkeypatch.setattr(checker.Certificate, "_tie_radius", lambda self, margins, reach=reach: reach)
        scale = 1 / (1 - float(reach))
        expected = float(np.linalg.norm(scale * W - np.array([[0.5], [2.0]]))) + scale * float(reach)
        assert float(certificate.upper()[0]) == pytest.approx(expected, rel=1e-9)


def test_multipliers_that_are_all_zero_leave_nothing_to_split() -> None:
    problem, prior = NAMED["counterexample"]().problem, np.array([[2.0, 0.0], [6.0, 0.0]])
    solution = solve(problem, norms.Sum(1, "max"), prior=prior)
    claim = Claim(problem, solution.norm, solution.status, solution.certified, None, 1e-9, solution.regularisation)
    examination = examine(claim)
    assert examination.proof
    assert examination.parts is not None
    assert examination.parts["witness"]["vectors"]["adjoint"][0] == [["0", "0"], ["0", "0"]]


@pytest.mark.parametrize(("sizes", "is_far"), [((1.0, 100.0), False), ((1e-100, 1e-60), True), ((1e200, 1e150), True)])
def test_the_adjoint_of_a_witness_is_that_of_its_multipliers(sizes: tuple[float, float], is_far: bool) -> None:
    """A multiple stands for one beyond the range of floats: its singular vectors are the same."""
    source = FAMILIES["planted"].make(np.random.default_rng(0), 3, 4, 3)
    dual = np.where(source.rejected, np.random.default_rng(1).uniform(3.0, 9.0, source.mask.shape), 0.0)
    expected = source.adjoint(dual)
    problem = SelectionProblem(sizes[0] * source.tokens, sizes[1] * source.queries, source.selected)
    with np.errstate(over="ignore"):
        adjoint = _adjoint(problem, dual)
    scale = np.abs(adjoint).max() / np.abs(expected).max()
    np.testing.assert_allclose(adjoint, scale * expected, rtol=0, atol=1e-14 * np.abs(adjoint).max())
    assert SAFE_NORM < np.abs(adjoint).max() < math.inf
    if not is_far:
        assert scale == pytest.approx(sizes[0] * sizes[1], rel=1e-13)


def test_a_margin_within_a_reach_is_lowered_by_the_length_of_its_constraint() -> None:
    """|delta| = 5/2 and |z| = 1/2, read as numbers of halves."""
    problem = single([[1.5, 2.0]], (0.5,))
    certificate = optimum.certificate(problem, FROBENIUS, np.ones((2, 1)), np.zeros((1, 2)))
    assert certificate._safe_margins([Fraction(1)], Fraction(1, 5)) == ([1 - Fraction(1, 5) * Fraction(5, 4)], [0])


@pytest.mark.parametrize("norm", [3, "schatten:4"])
def test_the_distance_to_the_optimum_is_by_the_inequality_of_clarkson(norm: Any) -> None:
    """|(U - V)/2|^p <= (|U|^p + |V|^p)/2 - |(U + V)/2|^p, where no norm is below that of the optimum V."""
    problem = FAMILIES["planted"].make(np.random.default_rng(0), 3, 4, 3)
    zero = np.zeros(problem.mask.shape)
    certificate = optimum.certificate(problem, get_norm(norm), np.ones(problem.shape[2:]), zero)
    p, entries = (3.0, problem.shape[2] * problem.shape[3]) if norm == 3 else (4.0, min(problem.shape[2:]))
    for low in (Fraction(1, 2), 2 - Fraction(1, 10**9)):
        bound = certificate._distance(low, Fraction(2))
        assert bound is not None
        power = float(2 ** int(p) - low ** int(p)) / 2
        # A matrix of so many equal entries, or singular values, is longest.
        assert float(bound) == pytest.approx(2 * power ** (1 / p) * entries ** (1 / 2 - 1 / p), rel=1e-12)


def test_ties_that_a_move_leaves_are_refused() -> None:
    problem, W = NAMED["tie_forces_a_detour"]().problem, np.array([[2.0], [-1.0]])
    certificate = optimum.certificate(problem, FROBENIUS, W, np.zeros(problem.mask.shape))
    assert certificate.witness["move"] is not None
    certificate.upper()
    certificate.witness["move"] = None
    with pytest.raises(checker.Rejected, match="tied tokens do not score the same"):
        certificate.upper()


def test_norms_of_zero_of_one_entry_and_at_the_ends_of_the_range() -> None:
    for norm in ("frobenius", "nuclear", "spectral", "max", 1, 1.5, 3):
        measure = get_norm(norm)
        for bound in (norm_above, dual_norm_above):
            assert bound(measure, Dyadic.of(np.zeros((2, 3)))) == 0
            for size in (1.0, 2.0**-1000, 2.0**900):
                corner = np.zeros((2, 3))
                corner[1, 2] = -3.0 * size
                value = bound(measure, Dyadic.of(corner)) / (3 * Fraction(size))
                assert 1 <= value <= 1 + Fraction(1, 10**15)


def test_norms_in_other_coordinates_are_bounded() -> None:
    """|A^(1/2) M| = 2 |M| for M along the first axis."""
    M = np.array([[3.0, 4.0], [0.0, 0.0]])
    high = 10 * (1 + Fraction(1, 10**15))
    assert 10 <= norm_above(Mahalanobis(np.diag([4.0, 1.0]), None), Dyadic.of(M)) <= high
    assert 10 <= dual_norm_above(Mahalanobis(np.diag([0.25, 1.0]), None), Dyadic.of(M)) <= high


def test_inverse_roots_are_not_taken_to_be_exact() -> None:
    """The dual norm in other coordinates, with the inverse of the root over the rationals."""
    B = np.array([[2.0, 0.5, 0.0], [0.5, 1.0, 0.25], [0.0, 0.25, 3.0]])
    norm = Mahalanobis(None, B, "max")
    M = np.random.default_rng(4).standard_normal((2, 3))
    assert norm._right is not None
    pair = norm._right.root
    rows = zip(pair.high.T.tolist(), pair.low.T.tolist(), strict=True)
    root = [[Fraction(a) + Fraction(b) for a, b in zip(*row, strict=True)] for row in rows]
    # M R^-T, row by row: the x with R x = m (Cramer's rule on 3 x 3).
    total = Fraction(0)
    for m in M.tolist():
        for column in range(3):
            permutation = [[Fraction(m[i]) if j == column else root[j][i] for j in range(3)] for i in range(3)]
            total += abs(determinant(permutation) / determinant([[root[j][i] for j in range(3)] for i in range(3)]))
    assert total <= dual_norm_above(norm, Dyadic.of(M)) <= total * (1 + Fraction(1, 10**13))


def determinant(m: list[list[Fraction]]) -> Fraction:
    (a, b, c), (d, e, f), (g, h, i) = m
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)


def test_dyadic_numbers_keep_their_digits_across_scales() -> None:
    array = np.array([2.0**-1074, -1.0, 2.0**52 + 1, 0.0, 2.0**1023])
    exact = Dyadic.of(array)
    assert exact.fractions() == [Fraction(float(a)) for a in array]
    assert [int(a) for a in exact.at(exact.exponent - 3)] == [8 * int(a) for a in exact.numbers]
    assert exact.value(3) == 3 * Fraction(2) ** exact.exponent
    assert exact[1:3].fractions() == [Fraction(-1), Fraction(2**52 + 1)]
    grid = Dyadic.of(np.arange(6.0).reshape(2, 3))
    assert grid.T.fractions() == [Fraction(a) for a in (0, 3, 1, 4, 2, 5)]


def test_the_recheck_of_a_composed_norm_uses_the_split_that_the_bound_rests_on() -> None:
    norm = norms.Sum(1.0, norms.Sum("max", "frobenius"))
    for seed in range(2):
        random = np.random.default_rng(seed)
        problem = SelectionProblem(random.normal(size=(3, 4, 3)), random.normal(size=(3, 3)), random.integers(0, 4, 3))
        solution = solve(problem, norm)
        certified = solution.certified
        assert solution.status is Status.OPTIMAL
        assert certified.split is not None
        assert len(certified.split) == norm.leaves == 3
        adjoint, total = problem.adjoint(certified.dual), certified.split.sum(axis=0)
        scale = np.vdot(total, adjoint) / np.vdot(total, total)
        np.testing.assert_allclose(scale * total, adjoint, rtol=0, atol=1e-8 * np.abs(adjoint).max())
        # Twice the precision widens no bound by more than the rounding that it counts.
        assert solution.verify().low >= certified.lower_bound * (1 - 1e-12)
