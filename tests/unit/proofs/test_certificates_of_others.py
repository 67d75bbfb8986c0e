"""Certificates that others wrote: what a reader is told, what is malformed or too long, and what comes back."""

from __future__ import annotations

import copy
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attsvm import SelectionProblem, Solution, Status, check, norms, solve
from attsvm.cli import main
from attsvm.proofs.certified import Certified
from certificate_mutants import certificate_of, contradictory, planted, rough, with_digest

Content = dict[str, Any]


@pytest.fixture(scope="module")
def plain() -> Content:
    return certificate_of(planted(0), "frobenius")


@pytest.fixture(scope="module")
def nuclear() -> Content:
    return certificate_of(planted(0), "nuclear")


def written(folder: Path, content: Content) -> Path:
    path = folder / "c.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def checked(folder: Path, content: Content, *options: str) -> tuple[int, str]:
    """Exit code and output of the checker by itself; nothing may reach the error stream."""
    command = [sys.executable, "-I", "-S", str(check.__file__), str(written(folder, content)), *options]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.stderr == ""
    return run.returncode, run.stdout


def with_claims(content: Content, **claims: str | None) -> Content:
    """Put claims in place of others, or leave them out, with the digest of that."""
    content = copy.deepcopy(content)
    content["claim"] = {name: text for name, text in (content["claim"] | claims).items() if text is not None}
    return with_digest(content)


# --- the reader's tolerance, and what a reader is told ---


@pytest.mark.parametrize(("inverse", "which"), [(None, ""), ([["1"]], "near the given ones ")])
def test_infeasibility_says_which_multipliers_cancel(inverse: list[list[str]] | None, which: str) -> None:
    content = certificate_of(contradictory(), "nuclear")
    content["witness"]["inverse"] = inverse
    told = dict(check.statements(content, {"status": "INFEASIBLE"}))
    assert told["reason"] == f"No W satisfies the constraints: multipliers {which}cancel exactly."


def test_a_wide_interval_is_no_optimum_to_a_reader(tmp_path: Path, plain: Content) -> None:
    """The file names its own tolerance; the reader's decides."""
    wide = with_claims(plain, tolerance="1", lower="0", upper="1000000", distance=None, rank_at_least="0")
    code, output = checked(tmp_path, wide)
    assert (code, output) == (1, "rejected  the bounds are infinitely apart, relatively; 1 is promised\n")
    low = Fraction(plain["claim"]["upper"]) / 2
    half = with_claims(plain, tolerance="1", lower=str(low), distance=None, rank_at_least="0")
    code, output = checked(tmp_path, half)
    assert code == 1
    assert "tolerance 1, what the file asks of itself" in output
    assert output.endswith("rejected  the interval is 1 wide, relatively; 1e-6 was asked for\n")
    assert checked(tmp_path, half, "--tol", "1.1")[0] == 0
    assert checked(tmp_path, half, "--tol", "0.9")[0] == 1
    assert checked(tmp_path, plain)[0] == 0


@pytest.mark.parametrize("status", ["TIME_LIMIT", "UNDECIDED"])
def test_a_status_without_a_promise_is_held_to_the_tolerance_as_well(
    tmp_path: Path, plain: Content, status: str
) -> None:
    wide = with_claims(plain, status=status, lower="0", upper="1000000", distance=None, rank_at_least="0")
    code, output = checked(tmp_path, wide)
    assert code == 1
    assert output.startswith(f"proven    {status.lower()}\n")
    assert "wide, relatively; 1e-6 was asked for" in output


def test_the_command_takes_the_tolerance_too(tmp_path: Path, capsys) -> None:
    path = str(written(tmp_path, rough()))
    assert main(["check", path]) == 1
    assert "1e-6 was asked for" in capsys.readouterr().out
    assert main(["check", path, "--tol", "0.2"]) == 0
    for bad in ("-1", "nan", "inf", "x"):
        assert main(["check", path, "--tol", bad]) == 2


def test_the_checker_names_tolerance_norm_price_loss_and_prior(tmp_path: Path, capsys) -> None:
    """C = 1e-9 of contradictory data: an optimum of hardly anything, and said to be."""
    content = certificate_of(contradictory(), "nuclear", C=1e-9, loss="squared_hinge", prior=np.ones((3, 2)))
    expected = {
        "tolerance": "1e-9, what the file asks of itself",
        "norm": "nuclear",
        "margin": "soft: C = 1e-9, loss squared_hinge",
        "prior": "a matrix of Frobenius norm 2.44949",
    }
    _, output = checked(tmp_path, content, "--tol", "1")
    lines = dict(line.split(maxsplit=1) for line in output.splitlines())
    assert {name: lines[name] for name in expected} == expected
    main(["check", str(written(tmp_path, content)), "--tol", "1"])
    assert capsys.readouterr().out == output
    hard = checked(tmp_path, certificate_of(planted(0), norms.Mahalanobis(np.diag([4.0, 1, 1, 1])), tol=1e-7))[1]
    lines = dict(line.split(maxsplit=1) for line in hard.splitlines())
    assert (lines["margin"], lines["prior"]) == ("hard", "none")
    assert lines["norm"] == "frobenius in the coordinates of A"
    assert lines["tolerance"].startswith("1e-7,")


@pytest.mark.parametrize(
    ("norm", "name"),
    [
        (norms.Sum("max", norms.Schatten(1.5)), "sum of max and schatten 1.5"),
        (norms.Largest(norms.Mixed(2, 1), norms.KyFan(2)), "larger of rows 2 1 and ky-fan 2"),
        (norms.Weighted(np.ones((4, 3)), math.inf), "weighted max"),
        (norms.Mahalanobis(np.eye(4), np.eye(3), 3), "l_3 in the coordinates of A and B"),
        ("spectral", "spectral"),
    ],
    ids=str,
)
def test_norms_are_named_to_a_reader(norm: Any, name: str) -> None:
    from attsvm.core.norms import get_norm
    from attsvm.proofs.words import norm_words

    assert check.describe(norm_words(get_norm(norm))) == name


def test_prices_are_named_from_the_smallest_to_the_largest(plain: Content) -> None:
    for prices, words in ((["2", "4", "1/4"], "0.25 to 4"), (["3", "3"], "3")):
        content = plain | {"problem": plain["problem"] | {"C": prices}}
        assert dict(check.statements(content, {"status": "OPTIMAL"}))["margin"] == f"soft: C = {words}, loss hinge"


@pytest.mark.parametrize("dual", [False, True])
def test_a_weighted_norm_is_bounded_on_a_ball_of_matrices(dual: bool) -> None:
    """A number within one of three is at most four, times its weight or divided by it."""
    words = check.read_norm(["weighted", [["2"]], ["entrywise", "3"]], (1, 1), iter([]))
    bound = check.norm_above(words, check.Matrix([[3]]), None, radius=Fraction(1), dual=dual)
    expected = Fraction(4, 2) if dual else Fraction(4 * 2)
    assert expected <= bound <= expected * (1 + Fraction(1, 10**30))


# --- malformed claims ---

HUGE = "1" + "0" * 400


@pytest.mark.parametrize(
    ("claims", "sentence"),
    [
        ({"lower": None}, "an optimum is claimed without its bounds"),
        ({"upper": None}, "an optimum is claimed without its bounds"),
        ({"upper": HUGE}, "apart, relatively"),
        ({"upper": "1/300"}, "upper is not proven: 0.0033333333333333334 is claimed, "),
        ({"lower": HUGE}, "lower is not proven: 1e+400 is claimed, "),
        ({"rank_at_least": "-5/2"}, "rank_at_least is -5/2; a whole number from 0 was expected"),
        ({"rank_at_most": "7/2"}, "rank_at_most is 7/2; a whole number from 0 was expected"),
        ({"tolerance": "-1"}, "the tolerance is negative"),
        ({"tolerance": None}, "malformed"),
        ({"status": "SOLVED"}, "an unknown claim"),
        ({"status": "INFEASIBLE"}, "malformed"),
        ({"proof": "1"}, "an unknown claim"),
        ({"distance": "nearly"}, "'nearly' is no rational number"),
        ({"upper": "1" * 5000}, "is no rational number"),
    ],
    ids=str,
)
def test_malformed_claims_are_a_sentence(
    tmp_path: Path, plain: Content, claims: dict[str, str | None], sentence: str, capsys
) -> None:
    content = with_claims(plain, **claims)
    code, output = checked(tmp_path, content)
    assert code == 1
    assert output.startswith("rejected  ")
    assert sentence in output
    assert output.count("\n") == 1
    assert main(["check", str(written(tmp_path, content))]) == 1
    assert capsys.readouterr().out == output


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("mask", [0] * 5),
        ("mask", [1] * 4),
        ("selected", [0] * 5),
        ("selected", [2, 1, 0, 0, 0]),
        ("sequence", 6),
        ("sequence", -1),
    ],
    ids=str,
)
def test_a_selection_that_does_not_fit_is_refused(plain: Content, part: str, value: Any) -> None:
    content = copy.deepcopy(plain)
    content["data"][part][0] = value
    with pytest.raises(check.Rejected, match=r"^selected, mask or sequence does not fit$"):
        check.check(with_digest(content))


def test_half_of_a_pair_is_said_for_what_it_is(tmp_path: Path, plain: Content, nuclear: Content) -> None:
    for left_out, words in (("rank_at_least", "at most 3 for every"), ("rank_at_most", "at least 3 for every")):
        code, output = checked(tmp_path, with_claims(plain, **{left_out: None}))
        assert code == 0
        assert f"rank      {words} optimum." in output
    code, output = checked(tmp_path, with_claims(nuclear, face=None))
    assert (code, output) == (1, "rejected  tail is claimed without face\n")
    code, output = checked(tmp_path, with_claims(nuclear, tail=None))
    assert code == 0
    assert "spectrum" not in output
    code, output = checked(tmp_path, with_claims(plain, status="TIME_LIMIT", upper=HUGE, lower=None))
    assert code == 1
    assert "lies in [0, 1e+400]" in output


def test_other_files_are_a_sentence(tmp_path: Path, plain: Content) -> None:
    older = plain | {"format": "attsvm certificate 1"}
    assert "its format is 'attsvm certificate 1'" in checked(tmp_path, older)[1]
    for value in ([], None, 3, "x", {"format": check.FORMAT}, {"format": [1]}):
        code, output = checked(tmp_path, value)  # type: ignore[arg-type]
        assert code == 1
        assert output.startswith(f"rejected  this is no intact {check.FORMAT}")
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100_000, encoding="utf-8")
    command = [sys.executable, "-I", "-S", str(check.__file__), str(deep)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (run.returncode, run.stderr) == (2, "")
    assert run.stdout.startswith("no certificate could be read: ")


# --- sizes ---


def long_numbers(count: int, digits: int) -> Content:
    """Tokens of so many digits above and below the line, no two with a common denominator to speak of."""
    content = certificate_of(planted(0), "frobenius")
    r = random.Random(0)
    head = "1" + "".join(r.choices("0123456789", k=digits - 9))
    tokens = [[[f"{head}{r.randrange(10**8):08}/{head}{2 * i + 1:08}"], ["0"]] for i in range(count)]
    content["data"] = {
        "tokens": tokens,
        "queries": [["1"]] * count,
        "selected": [[1, 0]] * count,
        "mask": [[1, 1]] * count,
        "sequence": list(range(count)),
    }
    return with_digest(content)


def test_long_numbers_are_refused_in_time_that_their_length_allows() -> None:
    """Some 850 KB took 17.6 s, and each doubling four times as long."""
    content = long_numbers(100, 4_200)
    assert 0.8e6 < len(json.dumps(content)) < 1.0e6
    start = time.process_time()
    with pytest.raises(check.Rejected, match="an array has no common denominator of 16384 bits"):
        check.check(content)
    # Reading such numbers takes some 0.1 s; a busy machine is allowed ten times that.
    assert time.process_time() - start < 1.5
    with pytest.raises(check.Rejected, match="is no rational number"):
        check.check(long_numbers(2, 4_301))


# --- back from a file ---


def same_bits(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


SUBNORMAL = np.array([[[1.0, -0.0, 5e-324], [0.0, 2.0, 0.0]], [[-0.0, 1.0, 0.0], [3.0, -1.0, 1e-310]]])
PRIOR = np.array([[-0.0, 0.25, 1.0], [0.5, -0.0, 0.0], [0.0, 0.0, -1e-300], [1.0, 2.0, 3.0]])
A, B = np.diag([1.0, 2.0, 3.0, 0.5]) + 0.2, np.diag([2.0, 0.3, 1.0]) + 0.1
EVERY_NORM = [
    "frobenius", "nuclear", "spectral", "max", 1.0, 1.5, "schatten:1.5", "ky-fan:2", norms.Mixed(2, 1),
    norms.Mixed(3, math.inf, "columns"), norms.Weighted(np.linspace(0.5, 2.0, 12).reshape(4, 3), 1.5),
    norms.Mahalanobis(A), norms.Mahalanobis(A, B, "nuclear"), norms.Mahalanobis(B=B, base=norms.Mahalanobis(A)),
    norms.Sum(1, norms.Mahalanobis(A)), norms.Largest("max", "frobenius"),
]  # fmt: skip


def saved_cases() -> Iterator[tuple[SelectionProblem, Any, dict[str, Any]]]:
    single = planted(0)
    data = single.tokens.astype(np.float32), single.queries.astype(np.float32)
    mask = single.selected | (np.random.default_rng(1).random(single.mask.shape) < 0.7)
    for norm in EVERY_NORM:
        yield planted(0), norm, {}
    yield SelectionProblem(*data, single.selected, mask=mask), "frobenius", {}
    yield SelectionProblem(data[0].astype(np.float16), data[1], single.selected), "max", {"C": 0.1}
    yield SelectionProblem(np.round(4 * single.tokens).astype(int), single.queries, single.reference), 1.5, {"C": 1.0}
    yield SelectionProblem(single.tokens[:2], single.queries, single.reference, sequence=[0, 1] * 3), 3.0, {"C": 0.3}
    yield planted(0, ties=True), "nuclear", {}
    yield planted(0), "frobenius", {"prior": PRIOR}
    yield planted(0), "nuclear", {"prior": PRIOR, "C": 0.5, "loss": "squared_hinge"}
    yield contradictory(), "max", {}
    yield planted(1), "nuclear", {"max_iter": 1}
    yield SelectionProblem(SUBNORMAL, [[1.0, 5e-324], [-0.0, 1.0]], [0, 1]), "frobenius", {}
    yield SelectionProblem([[[1.0, 2.0]]], [[1.0]], [0]), "frobenius", {}


@pytest.mark.parametrize(("problem", "norm", "options"), list(saved_cases()), ids=str)
def test_every_bit_comes_back(problem: SelectionProblem, norm: Any, options: dict[str, Any], tmp_path: Path) -> None:
    solution = solve(problem, norm, **options)
    solution.save(tmp_path / "c.json")
    back = Solution.load(tmp_path / "c.json")
    assert type(back) is type(solution)
    for name in ("tokens", "queries", "selected", "mask", "sequence", "reference"):
        assert same_bits(getattr(back.problem, name), getattr(problem, name)), name
    assert (back.problem.kind, back.norm, type(back.norm)) == (problem.kind, solution.norm, type(solution.norm))
    for field in fields(Certified):
        one, other = getattr(back.certified, field.name), getattr(solution.certified, field.name)
        assert (one is None and other is None) or same_bits(one, other), field.name
    for name in ("status", "iterations", "seconds", "method", "tol", "note", "objective", "gap", "lower_bound"):
        assert getattr(back, name) == getattr(solution, name), name
    for name in ("W", "dual", "margins", "support"):
        assert same_bits(getattr(back, name), getattr(solution, name)), name
    assert (back.regularisation.C, back.regularisation.loss) == (
        solution.regularisation.C,
        solution.regularisation.loss,
    )
    assert (back.regularisation.prior is None) == (solution.regularisation.prior is None)
    if solution.regularisation.prior is not None:
        assert same_bits(back.regularisation.prior, solution.regularisation.prior)
    assert (back.certificate is None) == (solution.certificate is None)
    if solution.certificate is not None and back.certificate is not None:
        assert same_bits(back.certificate.dual, solution.certificate.dual)
    assert str(back.verify()) == str(solution.verify())


def test_a_file_holds_each_matrix_once(plain: Content) -> None:
    assert set(plain["run"]["arrays"]) == {"margins"}
    two = certificate_of(planted(0), norms.Sum("frobenius", "nuclear"))
    # Rows of the split are those of W, one part after the other.
    assert np.shape(two["run"]["arrays"]["split"]) == (2 * 4, 3)


def test_a_w_that_left_the_range_of_floats_comes_back(tmp_path: Path) -> None:
    source = planted(0)
    solution = solve(SelectionProblem(1e-300 * source.tokens, 1e-300 * source.queries, source.selected))
    assert solution.status is Status.UNDECIDED
    assert np.isinf(solution.certified.W).all()
    mixed = solution.certified.W.copy()
    mixed[0, 0] = -0.0
    for W in (solution.certified.W, mixed):
        one = replace(solution, certified=replace(solution.certified, W=W))
        one.save(tmp_path / "c.json")
        back = Solution.load(tmp_path / "c.json")
        assert same_bits(back.certified.W, W)
        assert (back.status, back.objective) == (solution.status, math.inf)
        assert str(back.verify()) == str(one.verify())


def test_an_optimum_that_is_not_shown_is_not_loaded(tmp_path: Path) -> None:
    content = certificate_of(planted(1), "nuclear", max_iter=1)
    assert content["claim"]["status"] == "MAX_ITERATIONS"
    assert Solution.load(written(tmp_path, content)).status is Status.MAX_ITERATIONS
    path = written(tmp_path, with_claims(content, status="OPTIMAL"))
    with pytest.raises(ValueError, match=r"says what its W and multipliers do not show; .* the gap is "):
        Solution.load(path)


def test_tensors_come_back_as_arrays_of_their_dtype(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    single = planted(0)
    tokens, queries = torch.tensor(single.tokens).float(), torch.tensor(single.queries).float()
    solution = solve(SelectionProblem(tokens, queries, single.reference))
    solution.save(tmp_path / "c.json")
    back = Solution.load(tmp_path / "c.json")
    assert back.W.dtype == np.float32
    assert same_bits(back.W, solution.W.numpy())


def leaves(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(node, (dict, list)):
        for key in node if isinstance(node, dict) else range(len(node)):
            yield from leaves(node[key], (*path, key))


JUNK = (None, [], {}, "", "x", "-1", "1/0", "nan", "1e5", HUGE, "9" * 5000, 0, -1, 1.5, 10**30, True, [["1"]], "inf")


def edited(content: Content, r: random.Random) -> Content:
    """Put junk in the place of a part, drop one, or exchange two, and put the digest right."""
    content = copy.deepcopy(content)
    for _ in range(r.choice([1, 1, 2])):
        path = r.choice([path for path in leaves(content) if path])
        owner = content
        for key in path[:-1]:
            owner = owner[key]
        action = r.random()
        if action < 0.3:
            del owner[path[-1]]
        elif action < 0.8:
            owner[path[-1]] = copy.deepcopy(r.choice(JUNK))
        else:
            owner[path[-1]] = copy.deepcopy(content[r.choice(sorted(content))])
    return with_digest(content)


def loaded(path: Path) -> tuple[Solution | None, str]:
    try:
        return Solution.load(path), ""
    except ValueError as error:
        return None, str(error)


@pytest.mark.slow
def test_loading_a_bad_file_raises_only_value_errors(tmp_path: Path) -> None:
    """Flipped bits, cut files, and edited JSON with its digest put right: refused in a sentence, or proven."""
    r = random.Random(3)
    sources = [
        certificate_of(planted(0), norms.Mahalanobis(A, B, "nuclear")),
        certificate_of(planted(0, ties=True), "frobenius", prior=PRIOR, C=0.5),
        certificate_of(planted(0), norms.Sum(1, norms.Weighted(np.ones((4, 3)), 3))),
        certificate_of(contradictory(), "max"),
    ]
    path, refused = tmp_path / "c.json", 0
    for k in range(600):
        content = r.choice(sources)
        data = bytearray(json.dumps(content if k % 3 == 0 else edited(content, r)).encode())
        if k % 3 == 0:
            place = r.randrange(len(data))
            data = data[:place] if r.random() < 0.2 else data
            if place < len(data):
                data[place] ^= 1 << r.randrange(8)
        path.write_bytes(bytes(data))
        solution, sentence = loaded(path)
        refused += solution is None
        assert "\n" not in sentence
        assert solution is None or solution.status not in (Status.OPTIMAL, Status.INFEASIBLE) or solution.verify()
    assert refused > 400
