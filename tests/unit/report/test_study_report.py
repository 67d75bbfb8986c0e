"""Pictures, large numbers and sentences of a study's report, from results without training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from attsvm import TokenData
from attsvm.core.types import Parameterization
from attsvm.data.dataset import Dataset
from attsvm.data.images import Patches
from attsvm.report.pictures import pictures
from attsvm.report.prose import accuracy_sentence, tiles
from attsvm.study import Settings, Study
from attsvm.study.results import Accuracy, BagReport, PrecisionRun, Run
from attsvm.study.run import prepare

ROWS = 4


def study_of(*, d: int = 3, dz: int = 2, train: int = ROWS, images: bool = False, bags: bool = False) -> Study:
    """A study before its first training."""
    random = np.random.default_rng(0)
    tokens, queries = random.standard_normal((ROWS, 2, d)), random.standard_normal((ROWS, dz))
    patches = Patches(np.zeros((ROWS, 1, 2)), np.array([[0, 0, 1, 1], [0, 1, 1, 1]])) if images else None
    names = tuple("abcd") if bags else None
    labels = np.where(np.arange(ROWS) % 2, 1.0, -1.0)
    data = Dataset("data", TokenData(tokens, queries, labels), patches=patches, bags=names)
    settings = Settings(train=train)
    return Study(settings, prepare(data, settings), bags=BagReport("", (), ()) if bags else None)


def run_of(parameterization: Parameterization, end: float | None = None, *, judged: bool = False) -> Run:
    """A run whose correlation with its SVM ends at a number, if it has one."""
    trace: Any = None
    locality: Any = "optimal" if judged else None
    run = Run(parameterization, trace, np.zeros(ROWS, int), {}, {}, locality)
    if end is not None:
        run.curves[run.own] = np.array([0.1, end])
    return run


@pytest.mark.parametrize(("d", "dz", "drawn"), [(3, 2, True), (3, 1, False), (1, 3, False)])
def test_a_spectrum_is_drawn_of_matrices_with_several_singular_values(d: int, dz: int, drawn: bool) -> None:
    study = study_of(d=d, dz=dz)
    study.runs["W"] = run_of("W", 0.5)
    assert set(pictures(study)) == {"correlation"} | ({"spectrum"} if drawn else set())


@pytest.mark.parametrize("judged", [(True, True), (True, False), (False, False)])
def test_margins_are_drawn_where_a_selection_is_judged_locally(judged: tuple[bool, bool]) -> None:
    study = study_of()
    study.runs |= {"W": run_of("W", judged=judged[0]), "KQ": run_of("KQ", judged=judged[1])}
    assert set(pictures(study)) == ({"margins"} if any(judged) else set())


def test_arithmetic_is_drawn_where_it_was_compared() -> None:
    study = study_of()
    assert pictures(study) == {}
    study.precision = (PrecisionRun("float32", "exact", np.array([1]), np.array([0.5]), 0.0),)
    assert set(pictures(study)) == {"precision"}


@pytest.mark.parametrize("bags", [False, True])
@pytest.mark.parametrize("solved", [False, True])
def test_only_pictures_of_the_images_themselves_keep_their_colours(solved: bool, bags: bool) -> None:
    study = study_of(images=True, bags=bags)
    assert pictures(study) == {}
    study.runs["W"] = run_of("W", 0.5 if solved else None)
    drawn = pictures(study)
    charts, of_images = {"correlation", "spectrum"}, {"selection"}
    of_images |= ({"deciding"} if bags else set()) | ({"support"} if solved else set())
    assert {name for name, picture in drawn.items() if picture.own_colours} == of_images
    assert {name for name, picture in drawn.items() if not picture.own_colours} == (charts if solved else set())
    assert ("on the average image" in drawn["selection"].caption) is not bags


def test_a_training_with_an_svm_has_a_large_number_on_which_the_verdict_rests() -> None:
    study = study_of()
    study.runs |= {"W": run_of("W", 0.25), "KQ": run_of("KQ", 0.5)}
    study.precision = (PrecisionRun("float32", "autograd", np.array([1, 2]), np.array([0.875, 0.75]), 0.0),)
    assert [(tile.value, tile.label, tile.match) for tile in tiles(study)] == [
        ("0.250", "W with its Frobenius SVM", True),
        ("0.500", "K, Q with its nuclear SVM", True),
        ("0.750", "where plain float32 autograd ends", False),
    ]
    study.runs["W"] = run_of("W")
    assert [tile.label for tile in tiles(study) if tile.match] == ["K, Q with its nuclear SVM"]


@pytest.mark.parametrize(
    ("train", "shares", "rows", "words", "label"),
    [
        (3, (0.0, 1.0), "held-out", ("0.0 %", "100.0 %"), "of 1 sequence right, test"),
        (3, (None, None), "training", ("25.0 %", "75.0 %"), "of 3 sequences right, training"),
        (4, (None, None), "training", ("25.0 %", "75.0 %"), "of 4 sequences right, training"),
    ],
)
def test_shares_are_those_of_rows_held_out_where_they_are_known(
    train: int, shares: tuple[float | None, float | None], rows: str, words: tuple[str, str], label: str
) -> None:
    study = study_of(train=train)
    assert accuracy_sentence(study) == ""
    study.accuracies = Accuracy("uniform", "", 0.25, shares[0]), Accuracy("W", "", 0.75, shares[1])
    assert accuracy_sentence(study).startswith(
        f"On {rows} sequences the head alone, averaging all tokens, is right in {words[0]}; "
        f"trained attention is right in {words[1]}."
    )
    (tile,) = tiles(study)
    assert (tile.value, tile.label) == (words[1], label)
    assert tile.note.endswith(f"uniform attention {words[0]}")
