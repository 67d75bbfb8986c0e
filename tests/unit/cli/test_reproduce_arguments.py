"""Arguments of `attsvm reproduce`: which exclude each other, what they need, and what the work is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attsvm.cli import main
from attsvm.cli.console import BadInput
from attsvm_paper.cli import reproduce as command
from attsvm_paper.cli import work
from attsvm_paper.cli.reproduce import reproduce

DEFAULT = Path("attsvm-reproduction")


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What the work was given; it returns 7."""
    noted: list[tuple[Any, ...]] = []
    for name in ("reproduce", "explain"):
        monkeypatch.setattr(work, name, lambda *arguments, name=name: noted.append((name, *arguments)) or 7)
    return noted


@pytest.mark.parametrize(
    ("arguments", "call"),
    [
        ([], ("reproduce", (), "quick", DEFAULT, 0, [], False, None, None)),
        (["a", "b", "--quick"], ("reproduce", ("a", "b"), "quick", DEFAULT, 0, [], False, None, None)),
        (["--full", "--out", "x"], ("reproduce", (), "full", Path("x"), 0, [], False, None, None)),
        (["--set", "d=2", "--set", "T=3"], ("reproduce", (), "quick", DEFAULT, 0, ["d=2", "T=3"], False, None, None)),
        (["--fresh", "--seed", "5"], ("reproduce", (), "quick", DEFAULT, 5, [], True, None, None)),
        (["--workers", "1"], ("reproduce", (), "quick", DEFAULT, 0, [], False, 1, None)),
        (["--workers", "3"], ("reproduce", (), "quick", DEFAULT, 0, [], False, 3, None)),
        (["--scheduler", "tcp://x:1"], ("reproduce", (), "quick", DEFAULT, 0, [], False, None, "tcp://x:1")),
        (["a", "--explain"], ("explain", ("a",), DEFAULT, 0)),
        (["--explain", "--quick", "--seed", "2", "--out", "x"], ("explain", (), Path("x"), 2)),
    ],
)
def test_the_work_is_given_the_arguments(
    calls: list[tuple[Any, ...]], arguments: list[str], call: tuple[Any, ...]
) -> None:
    assert main(["reproduce", *arguments]) == 7
    assert calls == [call]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"quick": True, "full": True}, "--quick and --full exclude each other; one of them was expected."),
        (
            {"workers": 1, "scheduler": "tcp://x:1"},
            "--workers and --scheduler exclude each other; one of them was expected.",
        ),
        ({"workers": 0}, "--workers is 0; an integer of at least 1 was expected."),
        ({"workers": -2}, "--workers is -2; an integer of at least 1 was expected."),
        *(
            (
                {"explain": True, **other},
                "--explain runs cells of its own; names, --out and --seed alone were expected with it.",
            )
            for other in (
                {"set_": ["d=2"]}, {"full": True}, {"fresh": True}, {"workers": 2}, {"scheduler": "tcp://x:1"},
            )
        ),
    ],
)  # fmt: skip
def test_what_excludes_each_other_is_refused(
    calls: list[tuple[Any, ...]], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BadInput) as raised:
        reproduce("tiny", **options)
    assert str(raised.value) == sentence
    assert calls == []


@pytest.mark.parametrize(
    ("absent", "options", "needed"),
    [
        ({"distributed"}, {}, None),
        ({"distributed"}, {"workers": 1}, "distributed"),
        ({"distributed"}, {"scheduler": "tcp://x:1"}, "distributed"),
        ({"pyarrow"}, {}, "pyarrow"),
        ({"pyarrow"}, {"workers": 1}, "pyarrow"),
        ({"pyarrow", "distributed"}, {"workers": 1}, "pyarrow and distributed"),
        (set(), {"workers": 1}, None),
    ],
)
def test_only_workers_need_dask(
    monkeypatch: pytest.MonkeyPatch, absent: set[str], options: dict[str, Any], needed: str | None
) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None if name in absent else name)
    if needed is None:
        assert reproduce("tiny", **options) == 7
        return
    with pytest.raises(BadInput) as raised:
        reproduce("tiny", **options)
    assert str(raised.value) == f"reproduce needs {needed}; install them with `pip install 'attsvm[experiments]'`."
