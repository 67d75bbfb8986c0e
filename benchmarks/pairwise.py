"""Two checkouts of attsvm on the same instances, alternating: which statuses differ, and which checkout is slower?

    python benchmarks/pairwise.py OTHER [--suite rows named random mid held-out] [--out FILE]

OTHER is the folder of another checkout, for example of an earlier commit. Each checkout has a separate process with one
thread, and machine code is compiled before the clock starts. An instance is solved by both alternately, until both have
spent some time; the least processor time counts. The suites:

* *rows*: the instances of the tables of ``attsvm bench``, at each of its tolerances;
* *named*: the instances of tests/problems.py whose answers are known;
* *random*: every family of tests/problems.py at small sizes, hard and soft margins;
* *mid*: the same families at (100, 32, 24);
* *held-out*: families, sizes and seeds on which no constant was tuned, as in mid_size.py.

The option --out appends each finished instance as a line of JSON, and skips instances in the file.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).parent
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

SUITES = ("rows", "named", "random", "mid", "held-out")
NORMS = ("frobenius", "nuclear", "spectral", "max", "1", "1.5")
SMALL = ((6, 8, 10), (15, 15, 20), (30, 10, 8))
MIDDLE = (100, 32, 24)
SOFT = (0.1, 10.0)
# First word of the seeds of drawn instances; the second is the seed of mid_size.py.
SEED, HELD_OUT_SEED = 11, 100
LIMIT = 120.0
# Seconds of each checkout up to which an instance is repeated, and largest number of repeats.
ENOUGH, MOST = 0.4, 5
# Seconds above which a ratio of times is printed; below, clock ticks decide.
SHORTEST = 1e-3


@dataclass(frozen=True)
class Order:
    """One instance: its source, and the options of ``solve``."""

    suite: str
    source: list[Any]
    norm: str
    options: dict[str, float]

    @property
    def label(self) -> str:
        settings = " ".join(f"{name}={value:g}" for name, value in self.options.items())
        return " ".join(filter(None, (self.suite, *map(str, self.source), self.norm, settings)))


def orders(suites: list[str]) -> Iterator[Order]:
    """Yield the instances of the suites."""
    from mid_size import HELD_OUT_SIZES
    from plan import cells

    import problems

    for suite in suites:
        if suite == "rows":
            for cell in cells("full"):
                if cell.who.ours and not cell.mapped:
                    tol = float(cell.who.name.split()[-1])
                    yield Order("rows", [cell.instance.family, *cell.instance.sizes], cell.who.norm, {"tol": tol})
        elif suite == "named":
            for name in problems.NAMED:
                for norm in NORMS:
                    yield Order("named", [name], norm, {})
        else:
            sizes = {"random": SMALL, "mid": (MIDDLE,), "held-out": HELD_OUT_SIZES}[suite]
            for family in (*(problems.HELD_OUT if suite == "held-out" else ()), *problems.FAMILIES):
                for size in sizes:
                    for norm in NORMS:
                        yield Order(suite, [family, *size], norm, {})
                        if suite == "random":
                            yield from (Order(suite, [family, *size], norm, {"C": C}) for C in SOFT)


def serve() -> None:
    """Solve instances from stdin, one line of JSON per instance, with the attsvm on the path."""
    import numpy as np
    from instances import MAKERS

    import problems
    from attsvm import SelectionProblem, solve

    made: dict[str, SelectionProblem] = {}
    for line in sys.stdin:
        order = Order(**json.loads(line))
        key = json.dumps(order.source)
        if key not in made:
            made.clear()
            name, *size = order.source
            if order.suite == "rows":
                made[key] = SelectionProblem(**MAKERS[name](*size))
            elif order.suite == "named":
                made[key] = problems.NAMED[name]().problem
            else:
                make = problems.HELD_OUT[name] if name in problems.HELD_OUT else problems.FAMILIES[name].make
                seed = HELD_OUT_SEED if order.suite == "held-out" else SEED
                made[key] = make(np.random.default_rng([seed, *size]), *size)
        norm = order.norm if order.norm.isalpha() else float(order.norm)
        start = time.process_time()
        solution = solve(made[key], norm, time_limit=LIMIT, **order.options)
        seconds = time.process_time() - start
        print(json.dumps({"seconds": seconds, "status": solution.status.name, "gap": float(solution.gap)}), flush=True)


class Checkout:
    """A process that solves with the attsvm of one folder."""

    def __init__(self, folder: Path) -> None:
        settings = {"PYTHONPATH": str(folder / "src"), "ATTSVM_COMPILE": "first", "ATTSVM_PATIENCE": "0"}
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", str(Path(__file__)), "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ONE_THREAD | settings,
        )

    def solve(self, order: Order) -> dict[str, Any]:
        """Solve one instance once."""
        self._pipe(self._process.stdin).write(json.dumps(order.__dict__) + "\n")
        self._pipe(self._process.stdin).flush()
        return json.loads(self._pipe(self._process.stdout).readline())

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe

    def close(self) -> None:
        """End the process."""
        self._pipe(self._process.stdin).close()
        self._process.wait()


def compare(order: Order, here: Checkout, there: Checkout) -> dict[str, Any]:
    """Solve one instance by both checkouts, alternately."""
    answers = {"here": here.solve(order), "there": there.solve(order)}  # a first run, which compiles
    best = dict.fromkeys(answers, float("inf"))
    spent = 0.0
    for _ in range(MOST):
        for name, checkout in (("here", here), ("there", there)):
            answers[name] = checkout.solve(order)
            best[name] = min(best[name], answers[name]["seconds"])
            spent += answers[name]["seconds"]
        if spent > 2 * ENOUGH:
            break
    return {
        "label": order.label,
        **{f"{what}_{name}": answers[name][what] for name in answers for what in ("status", "gap")},
        **{f"seconds_{name}": best[name] for name in best},
    }


def main() -> None:
    """Print every status that differs, every ratio above 1.1, and the distribution of ratios."""
    if sys.argv[1:] == ["--serve"]:
        serve()
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--suite", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = options.out.read_text().splitlines() if options.out is not None and options.out.exists() else []
    rows = {row["label"]: row for row in map(json.loads, lines)}
    here, there = Checkout(HERE.parent), Checkout(options.other.resolve())
    for order in orders(options.suite):
        if order.label in rows:
            continue
        row = rows[order.label] = compare(order, here, there)
        ratio = row["seconds_here"] / row["seconds_there"]
        if row["status_here"] != row["status_there"] or (ratio > 1.1 and row["seconds_here"] > SHORTEST):
            print(
                f"{row['label']}: {row['status_here']} {row['seconds_here']:.4f} s here, "
                f"{row['status_there']} {row['seconds_there']:.4f} s there, ratio {ratio:.2f}",
                flush=True,
            )
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
    here.close()
    there.close()
    ratios = sorted(row["seconds_here"] / row["seconds_there"] for row in rows.values())
    differing = sum(row["status_here"] != row["status_there"] for row in rows.values())
    quantiles = ", ".join(f"{share:.0%} {ratios[int(share * (len(ratios) - 1))]:.2f}" for share in (0.05, 0.5, 0.95, 1))
    print(f"{len(rows)} instances, {differing} of another status; ratio of times here to there: {quantiles}")


if __name__ == "__main__":
    main()
