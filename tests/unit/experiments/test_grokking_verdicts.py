"""The grokking experiment's cells as documented, rows from given curves, and verdicts on rows made by hand."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attsvm_paper.beyond import grokking
from attsvm_paper.beyond.grokking import Config, foreseen, sweep, trials, verdicts, words
from attsvm_paper.beyond.predictions import predictions
from attsvm_paper.judging.statistics import bootstrap_interval, wilson_interval
from attsvm_paper.judging.verdict import Row, Verdict

TABLE = Path(__file__).parents[3] / "docs" / "tables" / "grokking.inc"


def documented() -> Counter[tuple[Any, ...]]:
    """Read the cells from the table of docs/findings.md: modulus, optimiser, loss, precision, steps, seeds."""
    cells: Counter[tuple[Any, ...]] = Counter()
    for line in TABLE.read_text(encoding="utf-8").splitlines()[2:]:
        p, optimiser, loss, precision, steps, reach = (part.strip() for part in line.strip("|").split("|")[:6])
        name, lr, *rest = optimiser.split(", ")
        options = dict(part.split() for part in rest)
        seeds = re.match(r"\d+ of (\d+)", reach)
        assert seeds
        decay, epsilon = float(options.get("decay", 0)), float(options.get("epsilon", 1e-25))
        steps_of = int(steps.replace(",", ""))
        cells[int(p), name, float(lr), decay, epsilon, loss, precision, steps_of, int(seeds[1])] += 1
    return cells


def cell_of(config: Config) -> tuple[Any, ...]:
    return (
        config.p, config.optimiser, config.lr, config.decay, config.epsilon, config.loss, config.precision,
        config.steps, config.trials,
    )  # fmt: skip


def test_a_full_run_has_the_documented_cells() -> None:
    assert Counter(map(cell_of, sweep("full"))) == documented()


def test_a_quick_run_has_two_seeds_of_the_small_size() -> None:
    """docs/findings.md: "two seeds"; smaller normalised steps are for a full run."""
    small = {(*cell[:-1], 2) for cell in documented() if cell[0] == 23 and cell[1:3] != ("normalised", 0.005)}
    assert set(map(cell_of, sweep("quick"))) == small
    assert len(sweep("quick")) == len(small)


def test_sizes_are_the_documented_ones() -> None:
    """docs/findings.md: 80 % of the pairs modulo 23 and width 100; as published 40 % modulo 113 and width 200."""
    sizes = {(config.p, config.share, config.width) for config in sweep("full")}
    assert sizes == {(23, 0.8, 100), (113, 0.4, 200)}
    # Accuracy on 7661 held-out pairs takes longer than a step of the small size.
    assert {config.records for config in sweep("full") if config.p == 113} == {20}


@pytest.mark.parametrize(
    "least",
    [
        {"p": 2, "share": 0.5},
        {"width": 1},
        {"share": 1 / 529 + 1e-9},
        {"share": 528.5 / 529},
        {"steps": 1},
        {"records": 1},
        {"lr": 1e-9},
        {"decay": 0.0},
        {"epsilon": 0.0},
    ],
)
def test_the_least_settings_are_taken(least: dict[str, Any]) -> None:
    assert asdict(Config("plain", **least)).items() >= least.items()


@pytest.mark.parametrize(
    ("wrong", "words_of"),
    [
        ({"p": 1}, "p, width and share are 1, 100 and 0.8"),
        ({"width": 0}, "p, width and share are 23, 0 and 0.8"),
        ({"share": 0.0}, "p, width and share are 23, 100 and 0.0"),
        ({"share": 1.0}, "p, width and share are 23, 100 and 1.0"),
        ({"share": -0.5}, "p, width and share are 23, 100 and -0.5"),
        ({"share": 1.5}, "p, width and share are 23, 100 and 1.5"),
        ({"share": 0.9 / 529}, "one training pair and one held-out pair"),
        ({"steps": 0}, "steps, records, lr, decay and epsilon are 0, 40"),
        ({"records": 0}, "are 1000, 0, 0.01, 0.0"),
        ({"lr": 0.0}, "are 1000, 40, 0.0, 0.0"),
        ({"decay": -0.1}, "are 1000, 40, 0.01, -0.1"),
        ({"epsilon": -1.0}, "are 1000, 40, 0.01, 0.0 and -1.0"),
    ],
)
def test_settings_outside_their_range_are_refused_by_name(wrong: dict[str, Any], words_of: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words_of)):
        Config("plain", **wrong)


def test_a_row_says_when_its_model_generalised(monkeypatch: pytest.MonkeyPatch) -> None:
    tests = ([0.1, 0.95, 0.97, 0.2], [0.1, 0.2, 0.94, 0.3])
    curves = [
        {"step": [0.0, 10.0, 20.0, 30.0], "test": test}
        | {name: [1.0, 2.0, 3.0, k + 4.0] for name in ("train", "margin", "normalised", "lost", "median")}
        for k, test in enumerate(tests)
    ]
    monkeypatch.setattr(grokking, "fit", lambda config, seeds: curves)
    late, never = trials(Config("plain"), np.array([5, 6]))
    assert (late["seed"], late["generalised"], late["when"], late["best"]) == (5, True, 10.0, 0.97)
    assert (never["seed"], never["generalised"], never["when"], never["best"]) == (6, False, None, 0.94)
    assert [late[f"last_{name}"] for name in ("train", "test", "margin", "normalised", "lost")] == [4, 0.2, 4, 4, 4]
    assert never["last_margin"] == 5
    assert (never["step"], never["test"]) == (curves[1]["step"], tests[1])


def rows_of(config: Config, best: list[float], **fields: Any) -> list[Row]:
    """Make rows whose models generalise from 95 % on."""
    return [
        asdict(config)
        | {"trial": trial, "seed": 100 + trial, "generalised": value >= 0.95, "best": value}
        | {"when": 10.0 * trial if value >= 0.95 else None}
        | {"last_margin": 1.0 + trial, "last_normalised": 2.0 + trial, "last_lost": 0.1 * trial, "last_test": value}
        | fields
        for trial, value in enumerate(best)
    ]


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (Config("plain"), "plain"),
        (Config("exact"), "exact"),
        (Config("scaled"), "scaled"),
        (Config("stablemax"), "stablemax"),
        (Config("power"), "power"),
        (Config("plain", decay=0.5), "decay"),
        (Config("plain", optimiser="perpendicular"), "perpendicular"),
        (Config("stablemax", optimiser="perpendicular"), "perpendicular"),
        (Config("scaled", optimiser="perpendicular"), "perpendicular-scaled"),
        (Config("exact", optimiser="normalised"), "normalised"),
        (Config("scaled", optimiser="normalised"), "normalised"),
        (Config("stablemax", optimiser="normalised"), "stablemax"),
        (Config("power", optimiser="normalised"), "power"),
        (Config("plain", optimiser="normalised"), None),
    ],
)
def test_the_prediction_is_that_of_optimiser_and_loss(config: Config, name: str | None) -> None:
    assert foreseen(asdict(config)) == name
    assert name is None or name in predictions()["grokking"]


def test_a_cell_is_named_by_its_settings() -> None:
    assert words(asdict(Config("plain"))) == "plain, float32, Adam, lr=0.01, p=23, width=100, share=0.8, steps=1000"
    other = asdict(Config("exact", "float64", "normalised", decay=0.5, epsilon=1e-8))
    end = "lr=0.01, p=23, width=100, share=0.8, steps=1000"
    assert words(other) == f"exact, float64, normalised, decay 0.5, epsilon 1e-08, {end}"
    assert words(other, "loss") == f"float64, normalised, decay 0.5, epsilon 1e-08, {end}"


def verdicts_of(rows: list[Row]) -> dict[str, Verdict]:
    found = verdicts(rows)
    assert len({one.quantity for one in found}) == len(found)
    return {one.quantity: one for one in found}


def test_a_cell_reports_shares_and_means_of_its_models() -> None:
    config = Config("plain", decay=0.5)
    rows = rows_of(config, [0.2, 0.96, 0.97, 0.95])
    found, where = verdicts_of(rows), words(rows[0])
    share = found[f"share of models that reach 95% on held-out pairs, {where}"]
    assert (share.measured, share.trials) == (0.75, 4)
    assert (share.low, share.high) == wilson_interval(3, 4)
    assert share.note.startswith("Predicted by guess: 0.7 to 1, undecided. Weight decay is how grokking")
    for what, values in (
        ("best accuracy on held-out pairs", [0.2, 0.96, 0.97, 0.95]),
        ("step at which 95% is reached, of those that reach it", [10.0, 20.0, 30.0]),
        ("least margin at the end", [1, 2, 3, 4]),
        ("least margin at the end over the cubed norm", [2, 3, 4, 5]),
        ("share of pairs whose gradient is zero at the label, at the end", [0.0, 0.1, 0.2, 0.3]),
    ):
        one = found[f"{what}, {where}"]
        assert one.measured == pytest.approx(np.mean(values))
        assert (one.low, one.high) == pytest.approx(bootstrap_interval(values))
        assert (one.trials, one.verdict, one.note) == (4, "measured", "")
    assert len(found) == 6


def test_numbers_that_no_model_or_not_every_one_has_are_left_out() -> None:
    rows = rows_of(Config("power"), [0.1, 0.2], last_margin=np.inf)
    quantities = [one.split(",")[0] for one in verdicts_of(rows)]
    assert quantities == [
        "share of models that reach 95% on held-out pairs",
        "best accuracy on held-out pairs",
        "least margin at the end over the cubed norm",
        "share of pairs whose gradient is zero at the label",
    ]


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (Config("plain"), "collapsed"),
        (Config("plain", optimiser="normalised"), "collapsed"),
        (Config("plain", "float64"), None),  # margins need not pass 36
        (Config("scaled"), "alive"),
        (Config("exact", "bfloat16"), "alive"),
        (Config("exact", "float64", "normalised"), "alive"),
        (Config("stablemax"), None),
        (Config("power"), None),
        (Config("plain", decay=0.5), None),
        (Config("scaled", optimiser="perpendicular"), None),
    ],
)
def test_what_is_predicted_of_lost_gradients(config: Config, name: str | None) -> None:
    rows = rows_of(config, [0.1, 0.2], last_lost=0.95)
    (one,) = (one for quantity, one in verdicts_of(rows).items() if quantity.startswith("share of pairs"))
    reason = predictions()["grokking"][name].reason if name else ""
    result = {"collapsed": "0.9 to 1, hit.", "alive": "-1e-09 to 1e-09, miss."}
    basis = {"collapsed": "guess", "alive": "calculation"}
    assert one.note == (f"Predicted by {basis[name]}: {result[name]} {reason}" if name else "")


def test_a_contrast_is_over_the_models_of_the_same_trial() -> None:
    power, scaled = rows_of(Config("power"), [0.5, 0.7, 0.4]), rows_of(Config("scaled"), [0.1, 0.2, 0.3, 0.4])
    # Trial 1 is missing on one side and trial 3 on the other.
    rows = [*power, *(row for row in scaled if row["trial"] != 1)]
    gain = verdicts_of(rows)[
        "tail, neither of them collapsing: gain in best held-out accuracy of power over scaled, "
        "float32, Adam, lr=0.01, p=23, width=100, share=0.8, steps=1000"
    ]
    assert gain.measured == pytest.approx(((0.5 - 0.1) + (0.4 - 0.3)) / 2)
    assert (gain.low, gain.high) == pytest.approx(bootstrap_interval([0.4, 0.1]))
    assert (gain.trials, gain.note) == (2, "")


def contrasts(*configs: Config, best: tuple[float, ...] = (0.1, 0.2)) -> list[str]:
    rows = [row for config in configs for row in rows_of(config, list(best))]
    return [name.split(":")[0] for name in verdicts_of(rows) if "gain" in name]


def test_contrasts_are_between_cells_that_differ_in_one_field() -> None:
    assert contrasts(Config("scaled"), Config("plain"), Config("power"), Config("stablemax")) == [
        "arithmetic, the tail being exponential",
        "tail, neither of them collapsing",
        "StableMax against cross-entropy that cannot collapse",
    ]
    assert contrasts(Config("stablemax"), Config("stablemax", "float64")) == ["arithmetic of StableMax"]
    # Of other losses the precisions are no contrast, and two differences are none either.
    assert contrasts(Config("plain"), Config("plain", "float64")) == []
    assert contrasts(Config("scaled"), Config("plain", steps=2000)) == []
    assert contrasts(Config("scaled"), Config("plain", epsilon=1e-8)) == []
    assert contrasts(Config("scaled"), Config("plain"), best=(0.1,)) == []


def test_without_rows_there_is_nothing_to_say() -> None:
    assert verdicts([]) == []
