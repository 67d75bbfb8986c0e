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
NORMS = {"Frobenius": "frobenius", "nuclear": "nuclear", "l_1": "1"}
README_TABLE = [row for row in table(ROOT / "README.md", "| instance (n, T, d)") if "both cores" not in row[0]]


@pytest.mark.parametrize("row", README_TABLE, ids=lambda row: f"{row[0]} {row[1]}")
def test_the_table_of_the_readme_is_that_of_results(row: list[str]) -> None:
    instance, norm, ours, naive, other = row
    name = re.sub(r"(\d+) classes, (\d+) inputs, (\d+) dimensions", r"classes \2, \1, \3", instance)
    result = measured()[f"{NORMS[norm]}, {name}"]
    seconds, unit = ours.split()
    exponent = {"s": "", "ms": "e-3", "us": "e-6"}[unit]
    assert any(same(seconds + exponent, one) for one in of_solver(result, "attsvm", 0))
    for quotation, solver in ((naive, "naive"), (other, other.split(",")[0])):
        for ratio in re.findall(r"([\d.,]+)x", quotation)[:1]:  # a second one is of memory
            assert any(same(ratio, one) for one in of_solver(result, solver, 1)), (ratio, solver)
    for gap in re.findall(r"at a gap of ([\d.e-]+)", other):
        assert any(same(gap, one) for one in of_solver(result, other.split(",")[0], 2))


def test_the_batches_of_the_readme_are_those_of_results() -> None:
    results = {
        (solver, cores): each
        for solver, cores, _, each, _ in table(ROOT / "benchmarks" / "RESULTS.md", "| solver | cores")
    }
    rows = table(ROOT / "README.md", "| instance (n, T, d) | norm | attsvm")
    batches = {norm: row for _, norm, *row in (row for row in rows if "both cores" in row[0])}
    for norm, solver, naive in (("Frobenius", "attsvm", "naive"), ("nuclear", "attsvm, nuclear", "naive, nuclear")):
        ours, theirs = float(results[solver, "2"]), float(results[naive, "1"].replace(",", ""))
        number, unit = batches[norm][0].split()[:2]
        assert abs(float(number) * SECONDS[unit] * 1e6 - ours) <= 1e6 * SECONDS[unit] * half_a_digit(number)
        # The naive loop is timed on one core.
        quotation = re.findall(r"[\d,]+", batches[norm][1])[0]
        ratios = [theirs / float(results[solver, cores]) for cores in ("1", "2")]
        assert any(same(quotation, f"{ratio:.0f}") for ratio in ratios), (norm, quotation, ratios)


# --- the experiments ---


def p_values(rows: list[list[str]], column: int) -> dict[str, list[float]]:
    """Return the p-values of every figure, in order; those of Fig. 11b count as of Fig. 8, whose runs they share."""
    out: dict[str, list[float]] = {}
    for row in rows:
        figure = row[0].split()[0].rstrip(",").replace("11b", "8")
        numbers = re.findall(r"(?<![\w.])(?:\d*\.\d+|\d+e-\d+)", row[column])
        out.setdefault(figure, []).extend(map(float, numbers))
    return out


def test_the_readme_and_the_page_give_the_same_p_values() -> None:
    readme = p_values(table(ROOT / "README.md", "| Figure | `attsvm reproduce`"), 3)
    page = p_values(table(DOCS / "experiments.md", "| figure | `attsvm reproduce`"), 4)
    shared = [figure for figure in readme if readme[figure]]
    assert len(shared) >= 8
    for figure in shared:
        assert readme[figure] == page[figure], figure


def test_the_readings_that_were_searched_are_counted() -> None:
    searched: Counter[str] = Counter()
    for name in registry.FIGURES:
        searched.update(one.figure for one in (registry.get(name).readings or list)())
    assert f"{searched.total()} readings of ten figures and panels" in text(DOCS / "experiments.md")
    assert f"{searched.total()} in all" in text(ROOT / "README.md")
    assert len(searched) == 10
    counts = {figure.removeprefix("Figs ").removeprefix("Fig. "): number for figure, number in searched.items()}
    page = {
        row[0].removesuffix(", curves"): row[3]
        for row in table(DOCS / "experiments.md", "| figure | `attsvm reproduce`")
    }
    assert {figure: int(cell.split(",")[0]) for figure, cell in page.items() if cell} == counts
    for row in table(ROOT / "README.md", "| Figure | `attsvm reproduce`"):
        for number in re.findall(r"\((\d+)(?: searched.*?)?\)", row[2]):
            figure = next(name for name in counts if row[0].startswith(name))
            assert int(number) == counts[figure], row[0]


def test_the_pages_say_how_many_readings_agree_as_the_search_does() -> None:
    search = {row[0]: row for row in table(DOCS / "tables" / "readings.inc", "| figure | readings searched")}
    page = {row[0].removesuffix(", curves"): row[3] for row in table(DOCS / "experiments.md", "| figure | `attsvm")}
    for figure, row in search.items():
        assert page[figure] == f"{row[1]}, {counted(int(row[2]), 'agrees', 'agree')}"
    for row in table(ROOT / "README.md", "| Figure | `attsvm reproduce`"):
        for searched, agree in re.findall(r"\((\d+) searched, (\d+) agrees?\)", row[2]):
            figure = next(name for name in page if row[0].startswith(name))
            assert page[figure] == f"{searched}, {counted(int(agree), 'agrees', 'agree')}", row[0]


def test_the_counts_of_verdicts_add_up() -> None:
    page = text(DOCS / "experiments.md")
    (counts,) = re.findall(
        r"calls (\d+) numbers the same, (\d+) corrected, (\d+) different; for (\d+) the trials", page
    )
    assert sum(map(int, counts)) == len(ledger().numbers)
    rows = table(DOCS / "experiments.md", "| figure | numbers | ours for the printed")
    assert sum(int(row[1]) for row in rows) == int(counts[2])
    assert f"ledger of {len(ledger().numbers)} numbers" in text(ROOT / "README.md")


def test_the_minutes_of_the_page_are_those_of_the_list() -> None:
    published = [registry.get(name).minutes for name in registry.FIGURES]
    quick, full = (sum(one[effort] for one in published) for effort in ("quick", "full"))
    minutes = re.findall(
        r"take (\w+) minutes quick and (\d+) full, (\d+) of them Fig. 6", text(DOCS / "experiments.md")
    )
    assert minutes == [("six", f"{full:.0f}", f"{registry.get('global-probability').minutes['full']:.0f}")]
    assert 5 < quick <= 6


def test_the_atlas_counts_its_predictions_and_the_baseline_first() -> None:
    page, rows = text(DOCS / "atlas.md"), table(DOCS / "tables" / "atlas.inc", "| model | prediction | hits")
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
    readme = text(ROOT / "README.md")
    assert readme.index(first) < readme.index(baseline[0].upper() + baseline[1:].removesuffix("."))
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
    for row in table(DOCS / "known.md", "| paper | statement"):
        assert re.search(r"abstract|Theorem", row[5]), row[0]


def test_the_readme_says_of_ablations_what_their_page_measures() -> None:
    rows = {row[0]: row for row in table(DOCS / "attribution.md", "| flips where predicted")}
    assert rows["query, norm frozen"][1] == rows["keys, norm frozen"][1] == "100 %"
    readme = text(ROOT / "README.md")
    assert "exact by construction with frozen norms" in readme
    (shares,) = re.findall(r"with live norms (\d+ %) of the flips at the query and (\d+ %) at the keys", readme)
    assert list(shares) == [rows[f"{side}, norm live"][1] for side in ("query", "keys")]


# What the README concedes, and the page with the reason.
LIMITS = [
    ("few of them select, and none is near its SVM. That is one model", "pretrained", "median cosine inside the span"),
    (
        "The settings of grokking and of trained embeddings were chosen after earlier runs",
        "grokking",
        "were chosen on runs",
    ),
    ("The settings of grokking and of trained embeddings were chosen after earlier runs", "known", "a second choice"),
    ("The control of gradient flow on aligned data cannot win", "known", "which cannot tell the norms apart"),
]


@pytest.mark.parametrize(("sentence", "page", "reason"), LIMITS)
def test_the_readme_says_what_limits_its_claims(sentence: str, page: str, reason: str) -> None:
    assert sentence in text(ROOT / "README.md")
    assert reason in text(DOCS / f"{page}.md")


def test_the_readme_counts_where_real_data_are_behind() -> None:
    (counts,) = re.findall(
        r"(\d+) instances, `attsvm bench --real`\) `solve` is behind the fastest peer on (\d+)",
        text(ROOT / "README.md"),
    )
    (row,) = (row for row in table(ROOT / "benchmarks" / "REAL.md", "| part | instances") if row[0] == "all")
    assert list(counts) == [row[1], row[3]]


# Where docs/grokking.md quotes the table below it: the sentence with its numbers left open, then each number's cell,
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
    (numbers,) = re.findall(re.escape(sentence).replace(r"\#", "([\\d.,]*\\d)"), text(DOCS / "grokking.md"))
    assert len(numbers) == len(places)
    for number, (*cell, name) in zip(numbers, places, strict=True):
        source = rows[tuple(cell)][column[name]].split()[0]
        if name == "zero":  # a share in the table, per cent on the page
            source = f"{100 * float(source):.1f}"
        assert same(number, source), (number, source, cell, name)
