"""Every erratum names a command that exists, and the short ones print what the report says."""

from __future__ import annotations

import ast
import math
import shlex
from pathlib import Path

import pytest

from attsvm.experiments import registry
from attsvm.report.errata import ERRATA

ROOT = Path(__file__).parents[2]
IN_PYTHON = {shlex.split(one.command)[2]: one for one in ERRATA if one.command.startswith("python -c")}


@pytest.mark.parametrize("erratum", ERRATA, ids=lambda erratum: erratum.title)
def test_the_command_exists(erratum) -> None:
    words = shlex.split(erratum.command)
    if words[0] == "attsvm":
        assert words[1] == "reproduce"
        registry.get(words[2])
    elif words[1] == "-c":
        compile(words[2], erratum.title, "exec")
    else:
        assert words[:3] == ["python", "-m", "pytest"]
        path, _, function = words[3].partition("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert not function or function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def printed(word: str, capsys: pytest.CaptureFixture[str]) -> str:
    (code,) = (code for code in IN_PYTHON if word in code)
    exec(compile(code, word, "exec"), {})
    return capsys.readouterr().out


def test_the_parabola_does_not_descend(capsys: pytest.CaptureFixture[str]) -> None:
    change, claimed = map(float, printed("eta", capsys).split())
    assert change == 0 > claimed


def test_ranks_are_at_most_the_smaller_of_n_and_d(capsys: pytest.CaptureFixture[str]) -> None:
    ranks = ast.literal_eval(printed("matrix_rank", capsys))
    assert ranks[::2] == [2, 4]
    assert all(nuclear < frobenius for frobenius, nuclear in zip(ranks[::2], ranks[1::2], strict=True))


def test_the_saturated_gradient_does_not_sum_to_zero(capsys: pytest.CaptureFixture[str]) -> None:
    others, selected = map(float, printed("backward", capsys).split())
    # The exact value, from probabilities of exp(-38) and exp(-37) that score 2 and 1 less.
    assert others == pytest.approx(-(2 * math.exp(-38) + math.exp(-37)), rel=1e-6, abs=0)
    assert selected != pytest.approx(-others, rel=0.5, abs=0)


def test_d_is_stronger_than_what_it_is_there_for(capsys: pytest.CaptureFixture[str]) -> None:
    holds, single = map(int, printed("check_conditions", capsys).split())
    (text,) = (one.holds for one in ERRATA if one.title.startswith("Condition D"))
    assert holds == 0
    assert f" {single} of them" in text
