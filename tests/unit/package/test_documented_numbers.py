"""Numbers that pages quote from a file of this repository are those of the file, and the commands they name exist."""

from __future__ import annotations

import ast
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest

from attsvm.platform.summary import counted
from attsvm_paper import registry
from attsvm_paper.published.ledger import ledger

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


def text(path: Path) -> str:
    """Return a page with every run of white space as one space."""
    return " ".join(path.read_text(encoding="utf-8").split())


def table(path: Path, head: str) -> list[list[str]]:
    """Return the cells of the table whose first line begins with ``head``."""
    lines = path.read_text(encoding="utf-8").splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith(head))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def half_a_digit(number: str) -> float:
    """Half of the last digit that is printed; of an integer that ends in zeros, of its last other digit."""
    mantissa, _, exponent = number.replace(",", "").partition("e")
    whole, _, decimals = mantissa.partition(".")
    zeros = 0 if decimals else len(whole) - len(whole.rstrip("0"))
    return 0.5 * 10.0 ** (zeros - len(decimals) + int(exponent or 0))


def same(quotation: str, source: str) -> bool:
    """Both are rounded: they agree when the intervals of what they were rounded from meet."""
    distance = abs(float(quotation.replace(",", "")) - float(source.replace(",", "")))
    return distance <= (half_a_digit(quotation) + half_a_digit(source)) * (1 + 1e-9)


# --- commands ---


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_and_commands_that_a_page_names_exist(page: Path) -> None:
    content = page.read_text(encoding="utf-8")
    # What a user makes and what a build makes are named too, with other beginnings.
    for name in re.findall(
        r"\b(?:benchmarks|docs|tests|examples)/[\w/.-]*\.(?:py|toml|inc|ipynb|md|svg|png)\b", content
    ):
        assert (ROOT / name).is_file() or name.startswith("docs/_build"), name
    for script, option in re.findall(r"python ((?:benchmarks|docs|tests)/[\w/]+\.py)[^`\n]*? (--[a-z-]+)", content):
        assert f'"{option}"' in (ROOT / script).read_text(encoding="utf-8"), (script, option)
    for name in re.findall(r"attsvm reproduce ([a-z][\w-]+)", content):
        registry.get(name)


SCRIPTS = [path for folder in ("benchmarks", "docs") for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_what_a_script_imports_of_the_package_exists(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "attsvm":
            module = import_module(str(node.module))
            for alias in node.names:
                if not hasattr(module, alias.name):
                    import_module(f"{node.module}.{alias.name}")


def test_the_tests_that_pages_name_exist() -> None:
    functions = {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    tests = {name for page in PAGES for name in re.findall(r"[`:](test_\w+)`", page.read_text(encoding="utf-8"))}
    assert tests
    assert tests <= functions


# --- the README's table of solvers ---


def measured() -> dict[str, dict[str, list[str]]]:
    """Seconds, ratio and gap of every solver in "Every cell" of RESULTS.md, by norm and instance, then by solver."""
    out: dict[str, dict[str, list[str]]] = {}
    content = (ROOT / "benchmarks" / "RESULTS.md").read_text(encoding="utf-8")
    for section in content.split("## Every cell")[1].split("\n### ")[1:]:
        name, _, rows = section.partition("\n")
        lines = [line.strip("|").split("|") for line in rows.splitlines() if line.startswith("|")]
        out[name] = {line[0].strip(): [one.strip(" >†") for one in line[1:4]] for line in lines[2:]}
    return out


def of_solver(instance: dict[str, list[str]], name: str, column: int) -> list[str]:
    """Return what is measured of the solvers whose names begin with this one."""
    long = {"clarabel through cvxpy": "cvxpy, vectorised", "naive": "naive cvxpy"}.get(name.lower(), name.lower())
    return [row[column] for solver, row in instance.items() if solver.lower().startswith(long) and row[column]]


SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
README = ROOT / "README.md"
# What the README compares: its words for an instance, and the name in RESULTS.md.
COMPARED = {
    "Random data of the paper, n = 6, T = 8, d = 10, Frobenius": "frobenius, random data of the paper 6, 8, 10",
    "Labels from a random matrix, n = 1000, T = 64, d = 64, Frobenius": (
        "frobenius, labels from a random matrix 1000, 64, 64"
    ),
    "Random data of the paper, n = 15, T = 15, d = 20, nuclear": "nuclear, random data of the paper 15, 15, 20",
}


@pytest.mark.parametrize("words", COMPARED)
def test_the_times_of_the_readme_are_those_of_results(words: str) -> None:
    result = measured()[COMPARED[words]]
    (line,) = re.findall(rf"\* {re.escape(words)} norm: (.*?)\.(?= \*)", text(README))
    seconds, unit = re.findall(r"^([\d.]+) (\w+)\.", line)[0]
    exponent = {"s": "", "ms": "e-3", "us": "e-6"}[unit]
    assert any(same(seconds + exponent, one) for one in of_solver(result, "attsvm", 0))
    ratios = re.findall(r"(DAQP|LIBLINEAR|SCS) takes ([\d,.]+) times this time", line)
    ratios += [("naive", ratio) for ratio in re.findall(r"per token ([\d,.]+) times", line)]
    assert ratios
    for solver, ratio in ratios:
        assert any(same(ratio, one) for one in of_solver(result, solver, 1)), (ratio, solver)


def test_the_readme_is_a_first_page() -> None:
    content = README.read_text(encoding="utf-8")
    assert len(content.splitlines()) <= 110
    assert len(content.split()) <= 900


# --- the experiments ---


def test_the_readme_says_of_every_figure_what_the_page_finds() -> None:
    agree, differ, weak = re.findall(
        r"Figures ([\w, ]+) agree with ours\. Figures ([\w, ]+) differ, and (\w+) is too weak", text(README)
    )[0]
    found: dict[str, set[str]] = {}
    for figure, *_, verdict, _ in table(DOCS / "paper.md", "| figure | `attsvm reproduce`"):
        for name in re.findall(r"\d+[a-c]?", figure):
            found.setdefault(name.replace("11b", "11"), set()).add(verdict)

    def named(words: str) -> set[str]:
        ranges = [range(int(low), int(high) + 1) for low, high in re.findall(r"(\d+) to (\d+)", words)]
        return {*re.findall(r"\d+[a-c]?", words), *(str(figure) for one in ranges for figure in one)}

    assert named(agree) == {name for name, verdicts in found.items() if verdicts == {"agrees"}}
    assert named(differ) == {name for name, verdicts in found.items() if verdicts == {"differs"}}
    assert {weak} == {name for name, verdicts in found.items() if verdicts == {"too weak to tell"}}


def test_the_readings_that_were_searched_are_counted() -> None:
    searched: Counter[str] = Counter()
    for name in registry.FIGURES:
        searched.update(one.figure for one in (registry.get(name).readings or list)())
    assert f"{searched.total()} readings of ten figures and panels" in text(DOCS / "paper.md")
    assert len(searched) == 10
    counts = {figure.removeprefix("Figs ").removeprefix("Fig. "): number for figure, number in searched.items()}
    page = {
        row[0].removesuffix(", curves"): row[3] for row in table(DOCS / "paper.md", "| figure | `attsvm reproduce`")
    }
    assert {figure: int(cell.split(",")[0]) for figure, cell in page.items() if cell} == counts


def test_the_pages_say_how_many_readings_agree_as_the_search_does() -> None:
    search = {row[0]: row for row in table(DOCS / "tables" / "readings.inc", "| figure | readings searched")}
    page = {row[0].removesuffix(", curves"): row[3] for row in table(DOCS / "paper.md", "| figure | `attsvm")}
    for figure, row in search.items():
        assert page[figure] == f"{row[1]}, {counted(int(row[2]), 'agrees', 'agree')}"


def test_the_counts_of_verdicts_add_up() -> None:
    page = text(DOCS / "paper.md")
    (counts,) = re.findall(
        r"calls (\d+) numbers the same, (\d+) corrected, (\d+) different; for (\d+) the trials", page
    )
    assert sum(map(int, counts)) == len(ledger().numbers)
    rows = table(DOCS / "paper.md", "| figure | numbers | ours for the printed")
    assert sum(int(row[1]) for row in rows) == int(counts[2])
    assert f"{len(ledger().numbers)} distinct numbers" in page


def test_the_minutes_of_the_page_are_those_of_the_list() -> None:
    published = [registry.get(name).minutes for name in registry.FIGURES]
    quick, full = (sum(one[effort] for one in published) for effort in ("quick", "full"))
    minutes = re.findall(r"take (\w+) minutes quick and (\d+) full, (\d+) of them Fig. 6", text(DOCS / "paper.md"))
    assert minutes == [("six", f"{full:.0f}", f"{registry.get('global-probability').minutes['full']:.0f}")]
    assert 5 < quick <= 6


def test_the_atlas_counts_its_predictions_and_the_baseline_first() -> None:
    page, rows = text(DOCS / "findings.md"), table(DOCS / "tables" / "atlas.inc", "| model | prediction | hits")
    reaching, never, every = ([int(part) for part in row[2:]] for row in rows[:3])
    assert [row[:2] for row in rows[:2]] == [["all", "a share tends to 1"], ["all", 'the baseline "never 1"']]
    first = (
        f"{sum(reaching)} predictions say that a share tends to 1: {reaching[0]} came out, {reaching[1]} did not and "
        f"{reaching[2]} are open."
    )
    baseline = (
        f'the baseline "never 1" is right in {never[0]} of {never[0] + never[1]} decided cells, all predictions '
        f"together in {every[0]}."
    )
    assert page.index(first) < page.index(baseline) < page.index("## Deciding whether")
    hits, misses, undecided = every
    assert f"All open cells: {hits} hits, {misses} misses, {undecided} undecided" in page
    assert f'"never 1": {never[0]} hits, {never[1]} misses' in page
    # The same cells are decided for both; a prediction that reaches 1 is where they differ.
    assert hits - never[0] == reaching[0] - reaching[1]
    cells = table(DOCS / "tables" / "atlas.inc", "| model | optimiser | norm | shares")
    kinds = [row[-1] for row in cells if row[-1].startswith("1 (") and "theorem" not in row[-1]]
    assert [kinds.count(f"1 ({kind})") for kind in ("hit", "miss", "undecided")] == reaching
    assert not re.search("committed with the predictions", page)


def test_what_was_read_of_a_later_paper_is_said() -> None:
    for row in table(DOCS / "findings.md", "| paper | statement"):
        assert re.search(r"abstract|Theorem", row[5]), row[0]


def test_the_readme_says_what_limits_its_claims() -> None:
    assert "few select a token, and none is near its SVM. That is one model" in text(README)
    assert "median cosine inside the span" in text(DOCS / "pretrained.md")


def test_the_readme_counts_where_real_data_are_behind() -> None:
    (counts,) = re.findall(
        r"(\d+) instances, `attsvm bench --real`\) `solve` is behind the fastest peer on (\d+)",
        text(README),
    )
    (row,) = (row for row in table(ROOT / "benchmarks" / "REAL.md", "| part | instances") if row[0] == "all")
    assert list(counts) == [row[1], row[3]]


# Where docs/findings.md quotes the table below it: the sentence with its numbers left open, then each number's cell,
# (optimiser, loss, precision), and column: accuracy, margin or share of zero gradients (in per cent).
FAST, ADAM, ORTHOGONAL = "normalised, 0.01", "Adam, 0.01", "perpendicular, 0.005"
QUOTATIONS = [
    (
        "the best accuracy on held-out pairs is # for *scaled* and # for *power*",
        [(FAST, "scaled", "float32", "accuracy"), (FAST, "power", "float32", "accuracy")],
    ),
    (
        "In float32, # % of the pairs of *plain* end with a zero gradient, and its margin stops at #",
        [(FAST, "plain", "float32", "zero"), (FAST, "plain", "float32", "margin")],
    ),
    (
        "*scaled* gets to margin # and *plain* stays at #;",
        [("normalised, 0.005", loss, "float32", "margin") for loss in ("scaled", "plain")],
    ),
    (
        "It reaches # in float64, # in float32 and # in bfloat16.",
        [(FAST, "stablemax", one, "accuracy") for one in ("float64", "float32", "bfloat16")],
    ),
    (
        "the gradient of # % of the pairs is exactly zero at the end, at margins of #.",
        [(FAST, "stablemax", "float32", "zero"), (FAST, "stablemax", "float32", "margin")],
    ),
    (
        "*scaled* has margins of # to # in all three precisions and a best accuracy of #.",
        [(ADAM, "scaled", *rest) for rest in (("bfloat16", "margin"), ("float64", "margin"), ("float32", "accuracy"))],
    ),
    (
        "*Power* has #. StableMax has # in float32 and float64, where it has not collapsed, and # in bfloat16",
        [
            (ADAM, *rest, "accuracy")
            for rest in (("power", "float32"), ("stablemax", "float32"), ("stablemax", "bfloat16"))
        ],
    ),
    (
        "Weight decay reaches # (nine of ten seeds 95 %) at margins of #. Orthogonal gradients reach # with *plain* in "
        "float32 and # with *scaled* in float64",
        [
            ("Adam, 0.01, decay 0.5", "plain", "float32", "accuracy"),
            ("Adam, 0.01, decay 0.5", "plain", "float32", "margin"),
            (ORTHOGONAL, "plain", "float32", "accuracy"),
            (ORTHOGONAL, "scaled", "float64", "accuracy"),
        ],
    ),
]


@pytest.mark.parametrize(("sentence", "places"), QUOTATIONS, ids=[one[0][:30] for one in QUOTATIONS])
def test_the_page_on_grokking_quotes_its_table(sentence: str, places: list[tuple[str, str, str, str]]) -> None:
    rows = {tuple(row[1:4]): row for row in table(DOCS / "tables" / "grokking.inc", "| p |") if row[0] == "23"}
    column = {"accuracy": 6, "margin": 7, "zero": 8}
    (numbers,) = re.findall(re.escape(sentence).replace(r"\#", "([\\d.,]*\\d)"), text(DOCS / "findings.md"))
    assert len(numbers) == len(places)
    for number, (*cell, name) in zip(numbers, places, strict=True):
        source = rows[tuple(cell)][column[name]].split()[0]
        if name == "zero":  # a share in the table, per cent on the page
            source = f"{100 * float(source):.1f}"
        assert same(number, source), (number, source, cell, name)
