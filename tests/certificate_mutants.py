"""Certificates that were tampered with, for the checker to reject.

    python tests/certificate_mutants.py 10000

checks that many, half of them changed where the digest tells, half with the digest put right, so that arithmetic has
to. A mutant of the second kind claims what is false, or rests on a witness that proves less than is claimed, by
construction:

* a bound is moved past the other one, a distance below the one to an accurate solution, a rank past the true one;
* an entry of W or a multiplier that counts is changed, in problems whose optimum is unique, so that any other W (any
  other multipliers) proves a worse bound, by more than the gap;
* a support token moves so that its margin shrinks, C or the prior changes what the losses cost or where V starts, which
  moves the optimum by more than the gap; a selection is swapped for a token that scores lower; a support is hidden;
* a weight or a root of a norm changes, by more than the gap, or a split of multipliers between two norms is a bad one;
* the status, the norm or the loss is another; a number is none any more, or a field is gone.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from attsvm import SelectionProblem, check, norms, solve
from attsvm.proofs.certified import certify
from attsvm.proofs.program import Program

Content = dict[str, Any]
JUNK: tuple[Any, ...] = (None, [], {}, "x", "1/0", "", "nan", 1.5, -1, "1e3", " 1", "1/-2", [[["1"]]], "0x10", "٣")


def planted(seed: int, ties: bool = False) -> SelectionProblem:
    """Six queries, five tokens, dimensions four and three, selected as a random W does, so that one exists."""
    rng = np.random.default_rng(seed)
    tokens, queries = rng.standard_normal((6, 5, 4)), rng.standard_normal((6, 3))
    best = np.einsum("ntd,de,ne->nt", tokens, rng.standard_normal((4, 3)), queries).argmax(axis=1)
    selected = np.zeros((6, 5), dtype=bool)
    selected[np.arange(6), best] = True
    if ties:
        selected[0] = [True, True, False, False, False]
    return SelectionProblem(tokens, queries, selected)


def contradictory(d: int = 3, dz: int = 2) -> SelectionProblem:
    rng = np.random.default_rng(1)
    return SelectionProblem(rng.standard_normal((20, 4, d)), rng.standard_normal((20, dz)), [0] * 20)


def certificate_of(problem: SelectionProblem, norm: Any, tol: float = 1e-9, **options: Any) -> Content:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "certificate.json")
        solve(problem, norm, tol=tol, **options).save(path)
        return json.loads(path.read_text(encoding="utf-8"))


def rough() -> Content:
    """A certificate of a W that is off the optimum by a hundredth."""
    exact = solve(planted(4))
    W = exact.certified.W + 0.01 * np.random.default_rng(5).standard_normal((4, 3))
    near = certify(Program(exact.problem, exact.norm), W, exact.certified.dual)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "certificate.json")
        replace(exact, certified=near, tol=0.2).save(path)
        return json.loads(path.read_text(encoding="utf-8"))


def distance_of(content: Content) -> float:
    """Distance from the W of :func:`rough`, scaled to margin one, to the optimum: known to some eight digits."""
    exact, W = solve(planted(4)), _table(content, "W")
    return float(np.linalg.norm(W / exact.problem.apply(W)[exact.problem.rejected].min() - exact.certified.W))


def originals() -> dict[str, Content]:
    """Certificates of every kind; each is accepted."""
    prior = np.random.default_rng(3).standard_normal((4, 3))
    weights, roots = (
        np.random.default_rng(4).uniform(0.5, 2.0, (4, 3)),
        np.random.default_rng(5).standard_normal((4, 4)),
    )
    return {
        "frobenius": certificate_of(planted(0), "frobenius"),
        "rough": rough(),
        "l_1.5": certificate_of(planted(0), 1.5),
        "l_3": certificate_of(planted(0), 3.0),
        "schatten": certificate_of(planted(0), "schatten:1.5"),
        "ties": certificate_of(planted(0, ties=True), "frobenius"),
        "prior": certificate_of(planted(0), "frobenius", prior=prior),
        "soft": certificate_of(planted(0), "frobenius", C=0.05),
        "squared hinge": certificate_of(planted(0), "frobenius", C=0.5, loss="squared_hinge"),
        "infeasible": certificate_of(contradictory(), "frobenius"),
        "nuclear": certificate_of(planted(0), "nuclear"),
        "spectral": certificate_of(planted(2), "spectral"),
        "max": certificate_of(planted(0), "max"),
        "ky-fan": certificate_of(planted(0), "ky-fan:2"),
        "weighted": certificate_of(planted(0), norms.Weighted(weights, 1.5)),
        "weighted prior": certificate_of(planted(0), norms.Weighted(weights, 1.5), prior=prior),
        "mahalanobis": certificate_of(
            planted(0), norms.Mahalanobis(roots @ roots.T + np.eye(4), np.diag([2.0, 1.0, 0.5]))
        ),
        "mahalanobis soft": certificate_of(planted(0), norms.Mahalanobis(roots @ roots.T + np.eye(4)), C=0.05),
        "sum": certificate_of(planted(0), norms.Sum("frobenius", "nuclear")),
        "sum soft": certificate_of(planted(0), norms.Sum("frobenius", "nuclear"), C=0.05),
        "largest": certificate_of(planted(0), norms.Largest("frobenius", "ky-fan:2")),
    }


def with_digest(content: Content) -> Content:
    """Put the digest right."""
    content["digest"] = check.digest(content)
    return content


def number(text: str) -> float:
    return float(Fraction(text))


def _table(content: Content, name: str) -> np.ndarray:
    return np.array([[number(x) for x in row] for row in content["witness"][name]])


def _shift(table: list[list[str]], place: tuple[int, int], amount: float) -> None:
    table[place[0]][place[1]] = str(Fraction(table[place[0]][place[1]]) + Fraction(amount))


def _cross_bounds(content: Content, random: Random) -> None:
    claim, share = content["claim"], Fraction(random.choice([1, 3, 10, 100]), random.choice([10**6, 10**3, 10]))
    if random.random() < 0.5:
        claim["lower"] = str(Fraction(claim["upper"]) * (1 + share))
    else:
        claim["upper"] = str(Fraction(claim["lower"]) * (1 - min(share, Fraction(1, 2))))


def _rank(content: Content, random: Random) -> None:
    # Every problem above has an optimum of full rank three in these norms.
    if random.random() < 0.5:
        content["claim"]["rank_at_least"] = str(random.randint(4, 50))
    else:
        content["claim"]["rank_at_most"] = str(random.randint(-3, 2))


def _distance(content: Content, random: Random) -> None:
    content["claim"]["distance"] = str(Fraction(distance_of(content) * random.choice([0.99, 0.5, 0.1, 0.0, -1.0])))


def _entry_of_W(content: Content, random: Random) -> None:
    W = _table(content, "W")
    large = [tuple(map(int, place)) for place in np.argwhere(np.abs(W) > 0.1 * np.abs(W).max())]
    place = random.choice(large)
    _shift(content["witness"]["W"], place, W[place] * random.choice([-2.0, -1.0, -0.5, 0.5, 1.0]))


def _multiplier(content: Content, random: Random) -> None:
    dual = _table(content, "dual")
    places = [tuple(map(int, place)) for place in np.argwhere(dual > 0.05 * dual.max())]
    idle = [tuple(map(int, place)) for place in np.argwhere(dual == 0.0)]
    if random.random() < 0.5:
        place = random.choice(places)
        _shift(content["witness"]["dual"], place, dual[place] * random.choice([-2.0, -1.0, -0.5, 0.5, 2.0]))
    else:  # of a token without a constraint, or one that counts against A^T dual, or simply negative
        _shift(content["witness"]["dual"], random.choice(idle), dual.max() * random.choice([-1.0, -1e-3, 0.5]))


def _support_token(content: Content, random: Random) -> None:
    """Move a support token against its margin, by a twentieth of it at least."""
    dual, W = _table(content, "dual"), _table(content, "W")
    places = [tuple(map(int, place)) for place in np.argwhere(dual > 0.05 * dual.max())]
    i, t = random.choice(places)
    data = content["data"]
    if data["selected"][i][t]:
        return _cross_bounds(content, random)
    image = W @ np.array([number(x) for x in data["queries"][i]])
    a = int(np.abs(image).argmax())
    _shift(data["tokens"][data["sequence"][i]], (t, a), random.choice([0.05, 0.3, 2.0]) / image[a])
    return None


def _selection(content: Content, random: Random) -> None:
    """Ask a query for a token that scores lower than another one under W."""
    data, W = content["data"], _table(content, "W")
    i = random.randrange(len(data["queries"]))
    if sum(data["selected"][i]) > 1:
        i = i - 1 if i else i + 1
    tokens = np.array([[number(x) for x in row] for row in data["tokens"][data["sequence"][i]]])
    scores = tokens @ W @ np.array([number(x) for x in data["queries"][i]])
    worse = random.choice(np.argsort(scores)[:-1].tolist())
    data["selected"][i] = [int(t == worse) for t in range(len(scores))]


def _hide(content: Content, random: Random) -> None:
    dual = _table(content, "dual")
    i, t = random.choice([tuple(map(int, place)) for place in np.argwhere(dual != 0)])
    content["data"]["mask"][i][t] = 0


def _price(content: Content, random: Random) -> None:
    content["problem"]["C"] = str(Fraction(content["problem"]["C"]) * random.choice([Fraction(1, 2), 2, 10]))


def _prior(content: Content, random: Random) -> None:
    V = _table(content, "W") - np.array([[number(x) for x in row] for row in content["problem"]["prior"]])
    # At the optimum V is a multiple of A^T dual, the slope of the objective in the prior.
    places = [tuple(map(int, place)) for place in np.argwhere(np.abs(V) > 0.2 * np.abs(V).max())]
    place = random.choice(places)
    _shift(content["problem"]["prior"], place, V[place] * random.choice([-0.5, -0.1, 0.1, 0.5]))


def _status(content: Content, random: Random) -> None:
    now = content["claim"]["status"]
    content["claim"]["status"] = "INFEASIBLE" if now == "OPTIMAL" else "OPTIMAL"


def _norm(content: Content, random: Random) -> None:
    others = (["entrywise", "1"], ["schatten", "1"], ["entrywise", "inf"], ["rows", "1", "inf"], ["unknown"], [], None)
    content["problem"]["norm"] = random.choice(others)


def _coordinates(content: Content, random: Random) -> None:
    """Change the weight of an entry that counts, or the diagonal of a root: the optimum moves by more than the gap."""
    norm = content["problem"]["norm"]
    rows, V = norm[1], _table(content, "W")
    places = [tuple(map(int, place)) for place in np.argwhere(np.abs(V) > 0.2 * np.abs(V).max())]
    a, b = random.choice(places) if norm[0] == "weighted" else (random.randrange(len(rows)),) * 2
    rows[a][b] = str(
        Fraction(rows[a][b]) * random.choice([Fraction(1, 2), Fraction(9, 10), Fraction(11, 10), 2, -1, 0])
    )


def _split(content: Content, random: Random) -> None:
    """Spoil how the multipliers are split between two norms: the bound on their dual norm grows."""
    rows = content["witness"]["vectors"]["adjoint"][0]
    i, k = random.randrange(len(rows)), random.randrange(len(rows[0]))
    rows[i][k] = str(Fraction(rows[i][k]) + random.choice([-3, -1, 1, 3]))


def _farkas(content: Content, random: Random) -> None:
    rows = content["witness"]["farkas"]
    i, t = random.choice([(i, t) for i, row in enumerate(rows) for t in range(len(row))])
    rows[i][t] = str(
        int(rows[i][t]) + random.choice([1, -1]) * max(1, abs(int(rows[i][t])) // random.choice([1, 2, 1000]))
    )


def _leaves(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(node, (dict, list)) and node:
        for key in node if isinstance(node, dict) else range(len(node)):
            yield from _leaves(node[key], (*path, key))
    else:
        yield path


def _at(content: Content, path: tuple[Any, ...]) -> Any:
    for key in path:
        content = content[key]
    return content


def _junk(content: Content, random: Random) -> None:
    """Replace a number that the proof rests on by something that is none, or drop the field."""
    infeasible = content["claim"]["status"] == "INFEASIBLE"
    parts = (
        [("data",), ("witness", "farkas")]
        if infeasible
        else [("data",), ("claim",), ("witness", "W"), ("witness", "dual")]
    )
    part = random.choice(parts)
    path = (*part, *random.choice(list(_leaves(_at(content, part)))))
    owner = _at(content, path[:-1])
    if random.random() < 0.2 and path[0] != "claim":
        del owner[path[-1]]
    else:
        owner[path[-1]] = random.choice([junk for junk in JUNK if junk != owner[path[-1]]])


Mutation = Callable[[Content, Random], None]
BOUNDS: tuple[Mutation, ...] = (_cross_bounds, _junk, _status)
UNIQUE: tuple[Mutation, ...] = (*BOUNDS, _entry_of_W, _multiplier, _support_token, _selection, _hide, _norm, _rank)
KINDS: dict[str, tuple[Mutation, ...]] = {
    "frobenius": UNIQUE,
    "rough": (_distance,),
    "l_1.5": UNIQUE,
    "l_3": UNIQUE,
    "schatten": UNIQUE,
    "ties": UNIQUE,
    "prior": (*BOUNDS, _entry_of_W, _prior, _hide, _rank),
    "soft": (*BOUNDS, _entry_of_W, _price, _hide),
    "squared hinge": (*BOUNDS, _entry_of_W, _price, _hide),
    "infeasible": (_junk, _status, _farkas),
    "nuclear": (*BOUNDS, _selection, _hide, _support_token),
    "spectral": (*BOUNDS, _selection, _hide, _support_token),
    "max": (*BOUNDS, _selection, _hide, _support_token),
    "ky-fan": (*BOUNDS, _selection, _hide, _support_token, _norm),
    "weighted": (*UNIQUE, _coordinates),
    "weighted prior": (*BOUNDS, _entry_of_W, _hide, _coordinates),
    "mahalanobis": (*UNIQUE, _coordinates),
    "mahalanobis soft": (*BOUNDS, _entry_of_W, _price, _hide, _coordinates),
    "sum": (*BOUNDS, _selection, _hide, _support_token, _norm, _split),
    "sum soft": (*BOUNDS, _entry_of_W, _price, _hide, _split),
    "largest": (*BOUNDS, _selection, _hide, _support_token, _norm, _split),
}


def arithmetic_mutants(count: int, seed: int, originals_by_name: dict[str, Content]) -> Iterator[tuple[str, Content]]:
    """Yield what was done and a certificate whose digest fits and whose claim is not proven."""
    random = Random(seed)
    for _ in range(count):
        name = random.choice(list(KINDS))
        content, change = copy.deepcopy(originals_by_name[name]), random.choice(KINDS[name])
        change(content, random)
        yield f"{name}: {change.__name__}", with_digest(content)


def digest_mutants(count: int, seed: int, originals_by_name: dict[str, Content]) -> Iterator[tuple[str, str]]:
    """Yield what was done and the text of a certificate in which one character is another, and means something else."""
    random = Random(seed)
    texts = {name: json.dumps(content) for name, content in originals_by_name.items()}
    while count:
        name = random.choice(list(texts))
        text, place = texts[name], random.randrange(len(texts[name]))
        text_after = text[:place] + random.choice('0123456789-/.,:[]{}"aeO') + text[place + 1 :]
        try:
            if json.loads(text_after) == originals_by_name[name]:
                continue
        except ValueError:
            pass
        count -= 1
        yield f"{name}: character {place}", text_after


def accepts(text: str) -> bool:
    """Check the text of a certificate; True when it passes."""
    try:
        check.check(json.loads(text))
    except (check.Rejected, ValueError):
        return False
    return True


def main(count: int) -> int:
    originals_by_name, bad = originals(), []
    for name, content in originals_by_name.items():
        check.check(content)
        print(f"accepted: {name}")
    for what, text in digest_mutants(count // 2, 0, originals_by_name):
        bad += [what] if accepts(text) else []
    for what, content in arithmetic_mutants(count - count // 2, 1, originals_by_name):
        bad += [what] if accepts(json.dumps(content)) else []
    print(f"{count - len(bad)} of {count} mutants rejected", *bad, sep="\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
