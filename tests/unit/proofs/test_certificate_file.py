"""Certificates as files: what is saved is proven, claims are true, and nothing that was tampered with passes."""

from __future__ import annotations

import ast
import json
import math
import sys
from fractions import Fraction
from pathlib import Path

import mpmath
import numpy as np
import pytest

from attsvm import SelectionProblem, Solution, Status, check, norms, solve
from attsvm.core.norms import get_norm
from attsvm.proofs.words import norm_proof, norm_roots, norm_words, read_norm
from certificate_mutants import (
    KINDS,
    accepts,
    arithmetic_mutants,
    contradictory,
    digest_mutants,
    distance_of,
    originals,
    planted,
    with_digest,
)

WEIGHTS = np.random.default_rng(4).uniform(0.5, 2.0, (4, 3))
A = np.diag([1.0, 2.0, 3.0, 0.5]) + 0.2
B = np.diag([2.0, 0.3, 1.0]) + 0.1
NORMS = [
    "frobenius",
    "nuclear",
    "spectral",
    "max",
    1.0,
    1.5,
    3.0,
    "schatten:1.5",
    "schatten:4",
    "rows:2:1",
    "columns:3:inf",
    "ky-fan:2",
    norms.Weighted(WEIGHTS, 1.5),
    norms.Weighted(WEIGHTS, math.inf),
    norms.Mahalanobis(A),
    norms.Mahalanobis(A, B, "nuclear"),
    norms.Mahalanobis(B=B, base=norms.Weighted(WEIGHTS, 1)),
    norms.Sum("frobenius", "nuclear"),
    norms.Sum(1, norms.Mahalanobis(A, base="spectral")),
    norms.Largest("ky-fan:2", 1.5),
]
PRIOR = np.random.default_rng(3).standard_normal((4, 3))


@pytest.fixture(scope="module")
def certificates():
    return originals()


def test_the_checker_is_one_short_file_of_the_standard_library() -> None:
    source = Path(check.__file__).read_text(encoding="utf-8")
    assert source.count("\n") < 800
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(str(node.module))
    assert modules <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("problem", "options"),
    [
        (planted(0), {}),
        (planted(0, ties=True), {}),
        (planted(0), {"prior": PRIOR}),
        (planted(0), {"C": 0.1}),
        (planted(0), {"C": 0.5, "loss": "squared_hinge", "prior": PRIOR}),
        (contradictory(4, 3), {"C": 1.0}),
    ],
    ids=["hard", "ties", "prior", "soft", "squared hinge, prior", "contradictory, soft"],
)
@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_what_is_saved_is_proven_and_comes_back(problem, options, norm, tmp_path: Path) -> None:
    solution = solve(problem, norm, **options)
    solution.save(tmp_path / "c.json")
    claims = check.check(json.loads((tmp_path / "c.json").read_text(encoding="utf-8")))
    # The bounds in floats count rounding against the claim; exact arithmetic proves at least as much, up to the 80 bits
    # that claims keep, the move of W onto its ties, and the split of multipliers between two norms.
    slack = max(1e-12, solution.norm.dual_resolution) * solution.certified.upper_bound
    assert claims["status"] == "OPTIMAL"
    assert float(claims["lower"]) >= solution.lower_bound - slack
    assert float(claims["upper"]) <= solution.certified.upper_bound + slack
    back = Solution.load(tmp_path / "c.json")
    assert type(back) is type(solution)
    assert (back.status, back.norm, back.method, back.tol) == (Status.OPTIMAL, solution.norm, solution.method, 1e-9)
    np.testing.assert_allclose(back.W, solution.W, rtol=0, atol=1e-12 * np.abs(solution.W).max())
    assert back.verify(), back.verify().statement


def test_infeasibility_comes_back_with_multipliers_that_cancel(tmp_path: Path) -> None:
    solve(contradictory(), "nuclear").save(tmp_path / "c.json")
    content = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert check.check(content) == {"status": "INFEASIBLE"}
    dual = [[int(x) for x in row] for row in content["witness"]["farkas"]]
    back = Solution.load(tmp_path / "c.json")
    problem, total = back.problem, [[Fraction(0)] * 2 for _ in range(3)]
    for i in range(len(dual)):
        for t, weight in enumerate(dual[i]):
            delta = [Fraction(a) - Fraction(b) for a, b in zip(*problem.tokens[i, [0, t]].tolist(), strict=True)]
            for a in range(3):
                for b in range(2):
                    total[a][b] += weight * delta[a] * Fraction(float(problem.queries[i, b]))
    assert not any(x for row in total for x in row)
    assert min(map(min, dual)) == 0 < max(map(max, dual))
    assert back.status is Status.INFEASIBLE
    assert back.verify()


def test_what_a_limit_leaves_is_an_interval(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tokens, queries = rng.standard_normal((30, 8, 10)), rng.standard_normal((30, 10))
    best = np.einsum("ntd,de,ne->nt", tokens, rng.standard_normal((10, 10)), queries).argmax(axis=1)
    solution = solve(SelectionProblem(tokens, queries, best), "nuclear", max_iter=1)
    assert solution.status is Status.MAX_ITERATIONS
    solution.save(tmp_path / "c.json")
    back = Solution.load(tmp_path / "c.json")
    assert back.status is Status.MAX_ITERATIONS
    assert back.lower_bound == pytest.approx(solution.lower_bound, rel=1e-12)


@pytest.mark.parametrize(
    "norm",
    [
        "frobenius",
        1.5,
        3.0,
        "schatten:1.5",
        "schatten:4",
        norms.Weighted(WEIGHTS, 1.5),
        norms.Mahalanobis(A, B),
        norms.Mahalanobis(A, base=3.0),
    ],
    ids=str,
)
def test_distance_and_rank_hold_for_a_rough_solution(norm, tmp_path: Path) -> None:
    """The enclosure of a W that is far from the optimum holds the optimum, and its rank bounds the true rank."""
    problem = planted(6)
    best = solve(problem, norm, tol=1e-12)
    rough = solve(problem, norm, tol=1e-2, warm_start=None)
    rough.save(tmp_path / "c.json")
    content = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    claims, W = check.check(content), rough.certified.W
    assert claims["upper"] >= Fraction(best.certified.lower_bound)
    assert claims["lower"] <= Fraction(best.certified.upper_bound)
    assert float(claims["distance"]) >= np.linalg.norm(W - best.certified.W) - 1e-6  # what best itself may be off by
    assert claims["rank_at_least"] <= best.rank <= claims["rank_at_most"]


def test_the_enclosure_is_of_use(certificates) -> None:
    content = certificates["rough"]
    claim = {name: float(Fraction(x)) for name, x in content["claim"].items() if name != "status"}
    assert 0 < distance_of(content) < claim["distance"]
    assert claim["distance"] == pytest.approx(math.sqrt(claim["upper"] ** 2 - claim["lower"] ** 2), rel=1e-12)
    assert certificates["frobenius"]["claim"]["rank_at_least"] == "3"


def test_the_nuclear_face_holds_all_but_a_tail(certificates) -> None:
    content = certificates["nuclear"]
    face, tail = int(content["claim"]["face"]), float(Fraction(content["claim"]["tail"]))
    sigma = np.linalg.svd(solve(planted(0), "nuclear", tol=1e-12).certified.W, compute_uv=False)
    assert face == 2
    assert sigma[face:].sum() <= tail < 1e-6 < sigma[face - 1]


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_bounds_on_norms_are_above_and_close(norm) -> None:
    rng, measure = np.random.default_rng(1), get_norm(norm)
    for _ in range(3):
        M = rng.standard_normal((4, 3)) * 10.0 ** rng.integers(-3, 4, size=(4, 3))
        matrix = check.Matrix.of([[Fraction(x) for x in row] for row in M.tolist()])
        words = check.read_norm(norm_words(measure), M.shape, iter(norm_roots(measure)))
        for dual in (False, True):
            value = measure.dual(M) if dual else measure.value(M)
            proof = norm_proof(measure, M, dual=dual)
            bound = float(check.norm_above(words, matrix, proof, dual=dual))
            # NumPy's norms, singular values and the two inverse roots (condition 3) are good to some 1e-14; off the
            # diagonal there is as much an entry.
            assert value * (1 - 1e-13) <= bound <= value * (1 + 1e-12)


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_norms_come_back_from_their_words(norm) -> None:
    measure = get_norm(norm)
    assert read_norm(json.loads(json.dumps(norm_words(measure)))) == measure


def test_roots_and_powers_enclose() -> None:
    rng = np.random.default_rng(2)
    with mpmath.workdps(80):
        for _ in range(50):
            x = Fraction(float(rng.lognormal(0, 20)))
            p = Fraction(float(rng.uniform(0.01, 7)))
            exact = mpmath.mpf(x.numerator) / x.denominator
            exact = exact ** (mpmath.mpf(p.numerator) / p.denominator)
            for above, sign in ((True, 1), (False, -1)):
                bound = check._power(x, p, above=above)
                ratio = mpmath.mpf(bound.numerator) / bound.denominator / exact
                assert 0 < sign * (ratio - 1) < mpmath.mpf(10) ** -38
            root = check.root_above(x)
            assert 0 <= root * root / x - 1 < Fraction(1, 2**140)


def test_norms_without_a_certificate_are_named(tmp_path: Path) -> None:
    class Own(norms.Norm):
        name = "own"

        def value(self, M):
            return float(np.linalg.norm(M))

        dual = value

        def smoothing(self, V, mu):
            raise NotImplementedError

    from dataclasses import replace

    solution = replace(solve(planted(0)), norm=Own())
    with pytest.raises(ValueError, match=r"^norm is 'own'; a norm of attsvm.norms was expected"):
        solution.save(tmp_path / "c.json")
    assert not list(tmp_path.iterdir())


def test_a_claim_that_is_not_proven_is_not_saved(tmp_path: Path, certificates) -> None:
    from dataclasses import replace

    solution = solve(planted(0))
    with pytest.raises(ValueError, match="a claim that exact arithmetic proves was expected"):
        replace(solution, certified=replace(solution.certified, W=2 * solution.certified.W[::-1])).save(tmp_path / "c")
    with pytest.raises(ValueError, match="multipliers that cancel exactly were not found"):
        replace(solution, status=Status.INFEASIBLE).save(tmp_path / "c")
    (tmp_path / "c").write_text(json.dumps(certificates["max"]).replace("OPTIMAL", "CANCELLED"), encoding="utf-8")
    with pytest.raises(ValueError, match="is damaged or another file"):
        Solution.load(tmp_path / "c")


def test_every_original_is_accepted(certificates) -> None:
    assert set(KINDS) <= set(certificates)
    for content in certificates.values():
        assert accepts(json.dumps(content))


def test_no_changed_character_passes(certificates) -> None:
    assert [what for what, text in digest_mutants(300, 7, certificates) if accepts(text)] == []


@pytest.mark.slow
def test_no_false_claim_passes_with_its_digest_put_right(certificates) -> None:
    """A sample; `python tests/certificate_mutants.py 10000` runs as many as one likes."""
    assert [what for what, content in arithmetic_mutants(700, 8, certificates) if accepts(json.dumps(content))] == []


def test_weaker_claims_pass(certificates) -> None:
    # The control of the mutants: the checker rejects what is not proven, not what is unusual.
    content = json.loads(json.dumps(certificates["frobenius"]))
    claim = content["claim"]
    claim["lower"] = str(Fraction(claim["lower"]) * (1 - Fraction(1, 10**12)))
    claim["distance"] = str(2 * Fraction(claim["distance"]))
    claim["rank_at_least"] = "1"
    del claim["rank_at_most"]
    content["run"]["note"] = "checked elsewhere"
    assert accepts(json.dumps(with_digest(content)))


def test_json_is_not_written_as_arrays(tmp_path: Path, certificates) -> None:
    with pytest.raises(ValueError, match=r"c\.npz; a certificate is JSON, a name such as c\.json was expected"):
        solve(planted(0)).save(tmp_path / "c.npz")
    assert not list(tmp_path.iterdir())
