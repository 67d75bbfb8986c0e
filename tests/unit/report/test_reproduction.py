"""The report of a reproduction: its record, its parts, and the files that are written."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import attsvm
from attsvm_paper import registry
from attsvm_paper.judging.joint import JointTest, joint_test
from attsvm_paper.judging.points import Point
from attsvm_paper.judging.verdict import Kind, Row, Verdict
from attsvm_paper.published.ledger import LedgerNumber, curve, ledger
from attsvm_paper.report.errata import ERRATA, Erratum, Withdrawal, section
from attsvm_paper.report.finished import FinishedRun
from attsvm_paper.report.reproduction import as_document, provenance, render, write_reproduction
from tiny_experiment import EXPERIMENT, Config

PRINTED = "Fig. 6a: W, n=5"


def verdict(kind: Kind, key: str = "", note: str = "") -> Verdict:
    published = None if kind == "measured" else 0.5
    return Verdict("tiny", f"{kind}, {key}", published, 0.5, 0.25, math.inf, 10, 0.125, kind, note=note, key=key)


VERDICTS = [
    verdict("agrees", f"{PRINTED} @ 10"), verdict("agrees", f"{PRINTED} @ 10"), verdict("differs", f"{PRINTED} @ 5"),
    verdict("corrected", "elsewhere", "größer"), verdict("measured"), verdict("too weak to tell", "there"),
]  # fmt: skip
POINT = Point(LedgerNumber("tiny: 0", 0.1, 500, 0.0), {k: 0.1 * (k % 3) for k in range(12)}, 0.2)


def joint(rows: Sequence[Row]) -> list[JointTest]:
    test = joint_test("tiny", "Fig. 0", [POINT])
    return [] if test is None else [test]


def finished(name: str = "tiny", verdicts: Sequence[Verdict] = VERDICTS) -> FinishedRun:
    experiment = replace(
        EXPERIMENT, name=name, title=f"Title of {name}", verdicts=lambda rows: list(verdicts), joint=joint,
        figure=lambda rows: Figure(figsize=(1, 1)),
    )  # fmt: skip
    rows = [{**vars(Config(d, trials=1)), "trial": 0, "seed": 1} for d in (2, 3)]
    return FinishedRun(experiment, rows, "full", 4, {"scale": "2"}, 1.5)


COUNTS = {"agrees": 1, "corrected": 1, "differs": 1, "too weak to tell": 1, "measured": 1}


def test_the_record_has_every_experiment_verdict_and_joint_test() -> None:
    runs = [finished(), finished("other", VERDICTS[-2:])]
    record = as_document(runs, "attsvm reproduce", [])
    assert (record["attsvm"], record["command"]) == (attsvm.__version__, "attsvm reproduce")
    # The other's printed number is the same.
    assert record["counts"] == COUNTS | {"measured": 2}
    first, second = record["experiments"]
    assert first == {
        "name": "tiny", "title": "Title of tiny", "source": EXPERIMENT.source, "claim": EXPERIMENT.claim,
        "command": runs[0].command, "effort": "full", "seed": 4, "parameters": dict(runs[0].setting), "trials": 2,
        "seconds": 1.5, "counts": COUNTS,
    }  # fmt: skip
    assert second["counts"] == dict.fromkeys(COUNTS, 0) | {"too weak to tell": 1, "measured": 1}
    assert [one["quantity"] for one in record["verdicts"]] == [one.quantity for one in [*VERDICTS, *VERDICTS[-2:]]]
    assert {one["high"] for one in record["verdicts"]} == {None}
    assert [one["figure"] for one in record["joint"]] == ["Fig. 0", "Fig. 0"]
    assert record["versions"]["attsvm"] == attsvm.__version__


@pytest.mark.parametrize("missing", [[], ["late", "later"]])
def test_a_record_is_complete_unless_experiments_are_missing(missing: list[str]) -> None:
    record = as_document([finished()], "", missing)
    assert (record["complete"], record["unfinished"]) == (not missing, missing)
    page = unescape(render([finished()], "", missing))
    assert ("Interrupted before their end, and not shown: late, later." in page) == bool(missing)
    assert "differs when sampling and reading errors, ours and theirs, do not explain the difference." in page


def test_published_figures_stand_apart_from_what_is_beyond_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [finished(), finished("other")]
    monkeypatch.setitem(registry.BEYOND, "other", runs[1].experiment)
    page = render(runs, "attsvm reproduce", [])
    published, beyond = (page.index(f'<h2 class="part" id="{name}"') for name in ("published", "beyond"))
    places = [page.index(f'<section class="pair experiment" id="{name}">') for name in ("tiny", "other")]
    assert published < places[0] < beyond < places[1]
    for run, name in zip(runs, ("published", "beyond"), strict=True):
        assert set(re.findall(r'<h2 class="part" id="(published|beyond)"', render([run], "", []))) == {name}


def test_the_tiles_count_the_kinds_of_verdicts_and_the_first_is_the_result() -> None:
    some = [*VERDICTS, *(verdict("measured") for _ in range(1233))]
    page = render([finished(verdicts=some)], "", [])
    tiles = re.findall(r'<div class="(tile[^"]*)"><b>([^<]*)</b><span>([^<]*)</span>', page)
    assert tiles == [
        ("tile match", "1", "agree"), ("tile", "1", "corrected"), ("tile", "1", "differ"),
        ("tile", "1", "too weak to tell"), ("tile", "1,234", "measured"),
    ]  # fmt: skip


def test_provenance_counts_the_compared_numbers_of_each_printed_curve() -> None:
    """Curves that show the same numbers in another panel are printed too."""
    found = {one.key: numbers for one, numbers in provenance([finished(), finished("other")])}
    same = [one for one in ledger() if one.same_as == PRINTED]
    assert found == {PRINTED: 2} | {one.key: len({5, 10} & {*one.x}) for one in same if {5, 10} & {*one.x}}
    assert provenance([finished(verdicts=VERDICTS[3:])]) == []
    assert {5, 10} < {*curve(PRINTED).x}


def test_what_is_written_is_the_page_the_record_and_a_folder_for_each_experiment(tmp_path: Path) -> None:
    out = tmp_path / "deep"
    runs = [finished(), finished("other")]
    assert write_reproduction(runs, str(out), "attsvm reproduce", ["late"]) == out / "index.html"
    names = ["figure.pdf", "figure.png", "index.html"]
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()) == [
        "index.html", *(f"other/{name}" for name in names), *(f"tiny/{name}" for name in names), "verdicts.json",
    ]  # fmt: skip
    text = (out / "verdicts.json").read_text(encoding="utf-8")
    assert json.loads(text) == as_document(runs, "attsvm reproduce", ["late"])
    # People read it: one space a level, letters as they are, a line at its end.
    assert text.splitlines()[1].startswith(' "attsvm": ')
    assert "größer" in text
    assert text.endswith("}\n")
    page = (out / "index.html").read_text(encoding="utf-8")
    assert page == render(runs, "attsvm reproduce", ["late"])
    for name in ("tiny", "other"):
        assert f"<h1>Title of {name}</h1>" in (out / name / "index.html").read_text(encoding="utf-8")


def test_the_section_of_errata_goes_through_the_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = dict.fromkeys(vars(ERRATA[0]), "") | {"version": "v1", "page": "3", "where": "Fig. 1", "test": "t::f"}
    told = fields | {"quote": "so it is", "holds": "it is not", "changes": "take care", "command": "ls", "shows": "A."}
    records = (
        Erratum(**(told | {"title": "later", "kind": "remark"})),
        Erratum(**(told | {"title": "first", "kind": "false statement", "stated": "sorry"})),
    )
    withdrawn = (Withdrawal("old", "It holds.", "t::g"), Withdrawal("older", "So it does.", "t::h"))
    for name, value in (("ERRATA", records), ("WITHDRAWALS", withdrawn), ("HEAD", "Head.")):
        monkeypatch.setattr(f"attsvm_paper.report.errata.{name}", value)
    opening, *parts = section().split("\n### ")
    assert opening.startswith("## Errata\n\nHead.\n\n")
    assert opening.endswith(
        "| later | remark | p. 3, Fig. 1 |  |  |\n| first | false statement | p. 3, Fig. 1 |  |  |\n"
    )
    common = "*For the reader*: take care\n\n```sh\nls\n```\n\nA. Asserted by `t::f`.\n"
    quoted = "v1, p. 3, Fig. 1: “so it is”\n\nit is not\n\n"
    assert parts == [
        f"False statement\n\n#### first\n\n{quoted}*The authors*: sorry\n\n{common}",
        "Gap in a proof\n",
        "Choice not stated\n",
        f"Remark\n\n#### later\n\n{quoted}{common}",
        "Withdrawn\n\nEarlier versions of this section listed these:\n\n"
        "* **old.** It holds. (`t::g`)\n* **older.** So it does. (`t::h`)\n",
    ]
