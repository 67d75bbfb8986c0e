"""attsvm and other solvers: time, memory and certified accuracy on the same instances.

    python benchmarks/solvers.py            half an hour on two idle cores; writes RESULTS.md and growth.svg
    python benchmarks/solvers.py --quick    under a minute, small instances; only prints, unless --out names a file
    python benchmarks/solvers.py --large    adds 1.3 million constraints from a memory map, and other long runs

Needs `pip install 'attsvm[bench]'`; the table lists solvers that are not installed as missing. The report is written
after every solver, so an interrupted run leaves a report that says how far it got.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import growth
import report
from instances import write
from plan import Cell, cells
from results import Results

from attsvm.platform.files import replacing_file

HERE = Path(__file__).parent
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
# Machine code is compiled before the clock starts.
ONE_THREAD["ATTSVM_COMPILE"] = "first"
BATCH, QUICK_BATCH = 2000, 200
BATCH_LIMIT = 180.0


def say(start: float, text: str) -> None:
    print(f"[{time.perf_counter() - start:4.0f} s] {text}", flush=True)


def run_contestant(plan: list[Cell], folder: Path) -> Iterator[tuple[Cell, dict[str, Any]]]:
    """Run one contestant's cells in a separate process, and yield each result when it is there."""
    who = plan[0].who
    orders = [
        {
            "folder": str(write(cell.instance, folder, mapped=cell.mapped)),
            "limit": cell.limit,
            "effort": cell.effort,
            "family": cell.family,
            "work": cell.instance.work,
            "mapped": cell.mapped,
        }
        for cell in plan
    ]
    command = [sys.executable, "-W", "ignore", str(HERE / "measure.py"), who.name, who.norm]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | ONE_THREAD
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(orders))
            process.stdin.close()
            for cell in plan:
                line = process.stdout.readline()
                if not line:
                    process.wait()
                    yield cell, {"outcome": "error", "verdict": f"its process ended with code {process.returncode}"}
                    continue
                yield cell, json.loads(line)
        finally:
            process.terminate()


def run_batch(mode: str, cores: int) -> Iterator[dict[str, Any]]:
    """Run the batch, each runner in a separate process."""
    count = QUICK_BATCH if mode == "quick" else BATCH
    runs = [(runner, c) for c in sorted({1, cores}) for runner in ("attsvm", "daqp")] + [("naive", 1)]
    runs += [("attsvm, nuclear", c) for c in sorted({1, cores})] + [("attsvm alone, nuclear", 1), ("naive, nuclear", 1)]
    runs += [(f"{runner}, infeasible", 1) for runner in ("attsvm", "attsvm alone", "daqp")]
    for runner, threads in runs:
        command = [sys.executable, "-W", "ignore", str(HERE / "batch_race.py"), runner, str(threads), str(count)]
        environment = os.environ | ONE_THREAD | {"NUMBA_NUM_THREADS": str(threads)}
        entry: dict[str, Any] = {"runner": runner, "cores": threads, "count": count}
        try:
            process = subprocess.run(
                command, capture_output=True, text=True, env=environment, timeout=BATCH_LIMIT, check=True
            )
            yield json.loads(process.stdout)
        except subprocess.TimeoutExpired:
            yield entry | {"verdict": "over the limit on time"}
        except (subprocess.CalledProcessError, json.JSONDecodeError) as error:
            last = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1:]
            yield entry | {"verdict": "failed: " + " ".join(last)[:120]}


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="attsvm bench", description="Time attsvm and other solvers.")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", dest="mode", action="store_const", const="quick", help="under a minute")
    size.add_argument("--large", dest="mode", action="store_const", const="large", help="the long runs too")
    size.add_argument(
        "--tiny", dest="mode", action="store_const", const="tiny", help="a few seconds, to see that it runs"
    )
    parser.add_argument("--out", type=Path, help="report to write (default: RESULTS.md here; none with --quick)")
    parser.add_argument("--only", nargs="+", metavar="SOLVER", help="these solvers alone, and attsvm")
    return parser.parse_args(namespace=argparse.Namespace(mode="full"))


def main() -> int:
    options = arguments()
    mode = options.mode or "full"
    whole = mode in ("full", "large") and not options.only
    out = options.out if options.out is not None else HERE / "RESULTS.md" if whole else None
    plan = [c for c in cells(mode) if not options.only or c.who.ours or c.who.name in options.only]
    command = "attsvm bench" + ("" if mode == "full" else f" --{mode}")
    start, load, cores = time.perf_counter(), os.getloadavg()[0], available_cores()
    results = Results(mode)

    def write(total: int) -> str:
        picture = None
        if out is not None and growth.write(results, out.parent / "growth.svg"):
            picture = "growth.svg"
        text = report.markdown(results, command, len(results.rows), total, cores, load, picture)
        if out is not None:
            with replacing_file(out) as temporary:
                temporary.write_text(text, encoding="utf-8")
        return text

    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    text = ""
    try:
        with tempfile.TemporaryDirectory(prefix="attsvm-bench-") as folder:
            if mode != "tiny" and not options.only:
                for entry in run_batch(mode, cores):
                    results.batch.append(entry)
                    cost = f"{1e6 * entry['seconds']:.1f} us each" if "seconds" in entry else entry["verdict"]
                    say(start, f"batch, {entry['runner']} on {entry['cores']} cores: {cost}")
            for _, group in groupby(plan, key=lambda cell: (cell.who.norm, cell.who.name)):
                for cell, entry in run_contestant(list(group), Path(folder)):
                    row = results.add(cell, entry)
                    place = f"growth in {cell.axis}, {cell.instance.name}" if cell.axis else cell.instance.name
                    label = f"{report.seconds_text(row)} s, " if report.seconds_text(row) else ""
                    say(start, f"{cell.who.norm}, {cell.who.name}, {place}: {label}{row.outcome}")
                text = write(len(plan))
    except KeyboardInterrupt:
        print("Interrupted; finished results were kept." if out else "Interrupted.", file=sys.stderr)
        return 130
    print("\n" + text.split("## Every cell")[0].rstrip())
    if out is not None:
        print(f"\nEvery cell: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
