"""Every erratum is complete, its command and its test exist, and the short commands print what the report says."""

from __future__ import annotations

import ast
import contextlib
import io
import math
import re
import shlex
from pathlib import Path

import pytest

from attsvm_paper import registry
from attsvm_paper.published.ledger import curve
from attsvm_paper.report.errata import ERRATA, HEAD, KINDS, WITHDRAWALS, section
from errata_numbers import falsified, numbers

ROOT = Path(__file__).parents[3]
IN_PYTHON = {shlex.split(one.command)[2]: one for one in ERRATA if one.command.startswith("python -c")}


def functions(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("erratum", ERRATA, ids=lambda erratum: erratum.title)
def test_the_record_is_complete(erratum) -> None:
    assert erratum.kind in KINDS
    assert erratum.version == "v1"
    assert 1 <= int(erratum.page) <= 54
    assert erratum.v3 == "not examined"
    assert all((erratum.where, erratum.quote, erratum.holds, erratum.changes, erratum.abstract, erratum.shows))


def test_version_3_is_said_to_be_unexamined_at_the_head() -> None:
    assert "has not been examined" in HEAD


@pytest.mark.parametrize("record", ERRATA + WITHDRAWALS, ids=lambda record: record.title)
def test_a_test_asserts_it(record) -> None:
    path, _, function = record.test.partition("::")
    assert function in functions(path)


@pytest.mark.parametrize("erratum", ERRATA, ids=lambda erratum: erratum.title)
def test_the_command_exists(erratum) -> None:
    words = shlex.split(erratum.command)
    if words[0] == "attsvm":
        assert words[1] == "reproduce"
        registry.get(words[2])
    elif words[1] == "-c":
        compile(words[2], erratum.title, "exec")
    elif words[1:3] == ["-m", "pytest"]:
        path, _, function = words[3].partition("::")
        names = functions(path)
        assert not function or function in names
        if "-k" in words:
            assert any(words[words.index("-k") + 1] in name for name in names)
    else:
        assert (ROOT / words[1]).is_file()


def test_the_page_ends_with_the_records() -> None:
    """After an edit of errata.toml, `python -m attsvm_paper.report.errata` prints the new section."""
    page = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    assert page[page.index("## Errata\n") :] == section()


def output_of(word: str) -> str:
    (code,) = (code for code in IN_PYTHON if word in code)
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(code, word, "exec"), {})
    return output.getvalue()


@falsified("output_of")
def test_the_saturated_gradient_does_not_sum_to_zero() -> None:
    others, selected = map(float, output_of("backward").split())
    # The exact value, from probabilities of exp(-38) and exp(-37) that score 2 and 1 less.
    assert others == pytest.approx(-(2 * math.exp(-38) + math.exp(-37)), rel=1e-6, abs=0)
    assert (round(selected / -others),) == numbers("Saturated", r"the last one is (\w+) times too large")
    assert numbers("Saturated", r"end at (\d+) steps") == (curve("Fig. 7b: W, Frobenius SVM").x[-1] + 1,)
    # Half of eps: a sum with one drops what is smaller.
    assert numbers("Saturated", r"log ε = ([\d.]+) in float64") == (round(53 * math.log(2), 1),)


@pytest.mark.slow
@falsified("output_of")
def test_d_is_stronger_than_what_it_is_there_for() -> None:
    holds, single = map(int, output_of("condition_d").split())
    title = "Condition D"
    n, T, d, none, total, unique, same = numbers(
        title, r"At n = (\d), T = (\d), d = (\d) it holds in (\w+) of (\d+) .*\. (\d+) of them .* selection, of (\d+)\."
    )
    (command,) = (one.command for one in ERRATA if one.title.startswith(title))
    assert f"random_data({total:.0f}, {n:.0f}, {T:.0f}, {d:.0f}, " in command
    assert (holds, single, total) == (none, unique, same)


@pytest.mark.slow
@falsified("output_of")
def test_separate_normalisation_goes_where_joint_normalisation_goes_and_stalls() -> None:
    """The erratum's own command, to its end: medians of 1 - correlation after its two numbers of steps."""
    output = output_of("SeparatelyNormalizedGD")
    joint, separate = ([float(part) for part in row.split()] for row in re.findall(r"\[([^\]]+)\]", output))
    title = "K and Q normalised"
    early, median, late = numbers(
        title, r"after ([\d,]+) steps \(median 1 − correlation ([\d.]+) .* At ([\d,]+) separate"
    )
    stalled, lower = numbers(title, r"has stalled \(([\d.]+)\), and joint normalisation goes on \(([\d.]+)\)")
    again = numbers(title, r"Medians after ([\d,]+) and ([\d,]+) steps")
    (draws,) = numbers(title, r"over (\w+) draws")
    (command,) = (one.command for one in ERRATA if one.title.startswith(title))
    assert again == (early, late)
    assert f"data[:{draws:.0f}]" in command
    assert f"steps={late:,.0f}".replace(",", "_") in command
    assert f"record_every=[{early:,.0f}]".replace(",", "_") in command
    # Three digits are quoted.
    assert [joint[0], separate[0], separate[1], joint[1]] == pytest.approx([median, median, stalled, lower], abs=6e-4)
    assert joint[1] < 0.7 * separate[1] < separate[0]
