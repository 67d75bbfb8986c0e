"""attsvm and sparse peers on real instances, in processor seconds of one thread.

    python benchmarks/real.py                   about twenty minutes of processor time; writes REAL.md
    python benchmarks/real.py --quick           three small data sets; only prints, unless --out names a file
    python benchmarks/real.py --only NAME ...   instances whose label contains one of the names; only prints

Every run is a fork of this process with a limit on its processor time. Neither a crash nor the load of the machine
changes a result. Tables are written after every instance. The option --rows appends each finished instance as a line of
JSON, and skips instances in the file.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("ATTSVM_COMPILE", "first")

import numpy as np  # noqa: E402
from instances import planted  # noqa: E402
from measure import limit_memory  # noqa: E402
from orthonormal import LARGEST_CONES  # noqa: E402
from peers_sparse import SPECTRAL, TOL, Liblinear, Statement, Task, first_accurate  # noqa: E402
from real_instances import QUICK, SUITE, RealInstance  # noqa: E402
from report import machine, versions  # noqa: E402

from attsvm import SelectionProblem, solve  # noqa: E402
from attsvm.platform.files import replacing_file  # noqa: E402

HERE = Path(__file__).parent
PEERS = {
    "frobenius": ("CLARABEL", "OSQP", "PIQP", "SCS", "LIBLINEAR"),
    "nuclear": ("CLARABEL", "SCS"),
    "max": ("CLARABEL", "HIGHS"),
}
# Processor seconds of one run.
LIMIT, QUICK_LIMIT = 60.0, 2.0
# Limit of a peer: multiple of the time of attsvm, least and most seconds. A slower peer is not the best.
SLOWER, LEAST, MOST_OF_PEER = 3.0, 0.5, 10.0
# Processor seconds for stating a problem, and for certifying an answer.
ALLOWANCE = 60.0
# Number of clock steps that must all be shorter than a tick, and the seconds to wait for them.
STEPS, TICK, WAIT = 10, 1e-3, 0.5
# Seconds up to which short runs are repeated, and largest number of repeats.
ENOUGH, MOST = 0.4, 5


@dataclass(frozen=True)
class Run:
    """Result of one contestant: seconds, accuracy, proven bound, and how it ended."""

    outcome: str
    seconds: float = np.inf
    accuracy: float = np.inf
    bound: float = 0.0

    @property
    def decides(self) -> bool:
        return self.outcome == "infeasible" or (self.outcome == "solved" and self.accuracy <= TOL)

    @property
    def text(self) -> str:
        if self.outcome == "infeasible":
            return f"{self.seconds:.2g} (infeasible)"
        if self.outcome == "solved":
            return f"{self.seconds:.2g} ({self.accuracy:.0e})"
        return f"> {self.seconds:.2g}" if self.outcome == "limit" else self.outcome


@dataclass
class Row:
    """One instance, and the run of every contestant."""

    instance: RealInstance
    shape: tuple[int, ...]
    constraints: int
    ours: Run
    peers: dict[str, Run] = field(default_factory=dict)

    def line(self) -> str:
        """Write the row as a line of JSON."""
        peers = {name: asdict(run) for name, run in self.peers.items()}
        entry = {"shape": self.shape, "constraints": self.constraints, "ours": asdict(self.ours), "peers": peers}
        return json.dumps({"label": self.instance.label, **entry}) + "\n"

    @classmethod
    def read(cls, instance: RealInstance, entry: dict[str, Any]) -> Row:
        """Read a line of :meth:`line`."""
        peers = {name: Run(**run) for name, run in entry["peers"].items()}
        return cls(instance, tuple(entry["shape"]), entry["constraints"], Run(**entry["ours"]), peers)

    @property
    def best(self) -> tuple[str, Run] | None:
        """The fastest peer that decides the instance as attsvm does; any decision counts if attsvm has none."""
        able = [
            (name, run)
            for name, run in self.peers.items()
            if run.decides and (not self.ours.decides or run.outcome == self.ours.outcome)
        ]
        return min(able, key=lambda pair: pair[1].seconds, default=None)

    @property
    def ratio(self) -> float:
        """The time of attsvm divided by the least time of a peer; if no peer ends, an upper bound by their limits."""
        best = self.best
        if not self.ours.decides:
            return np.nan if best is None else np.inf
        limits = [run.seconds for run in self.peers.values() if run.outcome == "limit"]
        if best is not None:
            return self.ours.seconds / best[1].seconds
        return self.ours.seconds / min(limits) if limits else np.nan

    @property
    def ratio_text(self) -> str:
        if not self.ours.decides:
            return "undecided"
        return ("" if self.best else "< ") + f"{self.ratio:.2g}" if np.isfinite(self.ratio) else ""

    @property
    def cells(self) -> tuple[str, ...]:
        best = self.best
        peers = ", ".join(f"{name} {run.text}" for name, run in self.peers.items())
        fastest = "none" if best is None else f"{best[0]} {best[1].seconds:.2g}"
        norm, margin = self.instance.norm, self.instance.margin
        sizes = ", ".join(map(str, self.shape))
        count = f"{self.constraints:,}"
        return self.instance.name, norm, margin, sizes, count, self.ours.text, fastest, self.ratio_text, peers


# --- one run, in its own process ---


def limited(run: Callable[[], Any], limit: float) -> Any:
    """Call with a limit on processor time, at which the process ends; zero means no limit.

    While such a limit is set, and for a few ticks after it, Linux counts the processor time of a process in ticks.
    """
    signal.setitimer(signal.ITIMER_PROF, limit)
    end = time.thread_time() + WAIT
    while limit == 0.0 and max(_step_of_clock() for _ in range(STEPS)) > TICK and time.thread_time() < end:
        pass
    try:
        return run()
    finally:
        signal.setitimer(signal.ITIMER_PROF, ALLOWANCE)


def _step_of_clock() -> float:
    start = now = time.process_time()
    while now == start:
        now = time.process_time()
    return now - start


def least(first: float, run: Callable[[], float]) -> float:
    """Repeat a short run without a limit; returns the least seconds, or the seconds of the first run if it is long."""
    times: list[float] = []
    while first + sum(times) < ENOUGH and len(times) < MOST:
        times.append(limited(run, 0.0))
    return min(times, default=first)


def with_attsvm(instance: RealInstance, problem: SelectionProblem, limit: float) -> Run:
    """Solve fresh copies of the problem, so that no cached result helps; the first run may load machine code."""
    solution: Any = None

    def run() -> float:
        nonlocal solution
        arrays = problem.tokens, problem.queries, problem.selected
        fresh = SelectionProblem(*arrays, mask=problem.mask, sequence=problem.sequence)
        start = time.process_time()
        solution = solve(fresh, instance.norm, tol=TOL, C=instance.C, loss=instance.loss)
        return time.process_time() - start

    first = limited(run, limit)
    seconds = first if first > limit / 2 else min(first, limited(run, limit))
    seconds = least(seconds, run)
    status = solution.status.name.lower()
    outcome = "infeasible" if status == "infeasible" else "solved" if solution.gap < np.inf else status
    return Run(outcome, seconds, float(solution.gap), float(solution.lower_bound))


def with_peer(instance: RealInstance, problem: SelectionProblem, name: str, limit: float, bound: float) -> Run:
    """State the problem once, find the tolerance at which the peer is accurate enough, and repeat short runs."""
    task = Task(problem, instance.norm, instance.regularisation)
    peer = Liblinear(task) if name == "LIBLINEAR" else Statement(task, name)
    run, peer.run = peer.run, lambda: limited(run, limit)  # type: ignore[method-assign]
    seconds, found = first_accurate(peer, bound)
    if found <= TOL or peer.says_infeasible:
        seconds = least(seconds, run)
    if peer.says_infeasible:
        return Run("infeasible", seconds)
    answer = peer.answer()
    proven = 0.0 if answer is None else answer.lower_bound
    return Run("solved" if np.isfinite(found) else "no answer", seconds, found, proven)


def in_process(limit: float, run: Callable[..., Run], *arguments: Any) -> Run:
    """Fork, run, and name the outcome."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(sender, run, *arguments))
    process.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError:
        process.join()
        result = Run("limit", limit) if process.exitcode == -signal.SIGPROF else Run("crashed")
    process.join()
    return result


def _child(sender: Connection, run: Callable[..., Run], *arguments: Any) -> None:
    signal.setitimer(signal.ITIMER_PROF, ALLOWANCE)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)  # solvers print
    os.dup2(quiet, 2)
    limit_memory()
    try:
        result = run(*arguments)
    except MemoryError:
        result = Run("too large")
    except ImportError as error:
        result = Run(f"{error.name} is missing")
    except Exception as error:  # any error of a peer becomes an entry of the table
        result = Run(f"failed: {type(error).__name__}")
    sender.send(result)


# --- the suite ---


def contestants(instance: RealInstance, problem: SelectionProblem) -> tuple[str, ...]:
    """List the peers that can state the problem and may solve it in time."""
    names = PEERS[instance.norm]
    if problem.has_ties:
        names = tuple(name for name in names if name != "LIBLINEAR")
    if instance.norm in SPECTRAL:
        shape = Task(problem, instance.norm).coordinates.shape
        if min(shape) > 1:
            names = tuple(name for name in names if sum(shape) <= LARGEST_CONES[name])
    return names


def compare(instance: RealInstance, problem: SelectionProblem, limit: float) -> Row:
    """Run every contestant on one instance."""
    ours = in_process(limit, with_attsvm, instance, problem, limit)
    row = Row(instance, problem.shape, int(problem.constrained.sum()), ours)
    most = min(limit, MOST_OF_PEER)
    theirs = min(most, max(LEAST, SLOWER * ours.seconds)) if ours.decides else most
    for name in contestants(instance, problem):
        bound = max(run.bound for run in (ours, *row.peers.values()))
        row.peers[name] = in_process(theirs, with_peer, instance, problem, name, theirs, bound)
    return row


def warm() -> None:
    """Load machine code before the forks, which inherit it."""
    problem = SelectionProblem(**planted(10, 8, 6))
    for norm in PEERS:
        for C in (None, 1.0):
            solve(problem, norm, C=C)


# --- the report ---

METHOD = f"""\
Every run is a process of its own on one thread; a cell is processor seconds, the least of repeated runs for short ones,
and in brackets the accuracy. attsvm is asked for a certified gap of {TOL:g}. Each peer has one vectorised sparse
statement (`benchmarks/peers_sparse.py`), stated and compiled before its clock starts, whereas attsvm's time begins at
the problem. A peer's tolerance falls by tens from 1e-5 until its own multipliers certify a gap of {TOL:g}; LIBLINEAR
has no multipliers, and is held against the best bound that another contestant proved. attsvm may take {LIMIT:g} s a
run. A peer may take {SLOWER:g} times attsvm's time, at least {LEAST:g} s and at most {MOST_OF_PEER:g} s: "> 0.5" met
such a limit. **ratio** is attsvm's time over that of the fastest peer that is accurate enough; below one attsvm is
ahead. "<" bounds it where no peer arrived. An instance that attsvm leaves open and a peer decides counts as an infinite
ratio.
What a peer calls infeasible is its word, whereas attsvm's certificate was checked. Semidefinite cones are left out
beyond sides d + dz of {LARGEST_CONES["CLARABEL"]} (Clarabel) and {LARGEST_CONES["SCS"]} (SCS), where they take minutes.
"""
HEADER = (
    "instance", "norm", "margin", "n, T, d, dz", "constraints", "attsvm, s", "best peer, s", "ratio", "every peer, s",
)  # fmt: skip


def summary(rows: list[Row], title: str) -> str:
    """Return a line of the first table: number of instances, undecided ones, median ratio and largest ratio."""
    ratios = [row.ratio for row in rows if not np.isnan(row.ratio)]
    worst = max((row for row in rows if not np.isnan(row.ratio)), key=lambda row: row.ratio, default=None)
    undecided = sum(not row.ours.decides for row in rows)
    behind = sum(ratio > 1.0 for ratio in ratios)
    median = f"{np.median(ratios):.2g}" if ratios else ""
    name = "" if worst is None else f"{worst.ratio_text} ({worst.instance.label})"
    return f"| {title} | {len(rows)} | {undecided} | {behind} | {median} | {name} |"


def markdown(rows: list[Row], command: str, total: int, load: float) -> str:
    """Return the report; it is unfinished while there are fewer rows than ``total``."""
    parts = {
        "tuned": [row for row in rows if not row.instance.held_out],
        "held out": [row for row in rows if row.instance.held_out],
    }
    state = "" if len(rows) >= total else f" **Unfinished: {len(rows)} of {total} instances.**"
    lines = ["# Real instances", "", f"Written by `{command}`; do not edit.{state}", ""]
    lines += [f"{machine()}. Load average at the start: {load:.1f}.", versions() + ".", "", METHOD]
    lines += ["| part | instances | undecided | behind | median ratio | worst ratio |", "|---|---:|---:|---:|---:|---|"]
    lines += [summary(part, title) for title, part in parts.items()] + [summary(rows, "all"), ""]
    undecided = [row.instance.label for row in rows if not row.ours.decides]
    lines += [f"Undecided by attsvm: {'; '.join(undecided) or 'none'}.", ""]
    for title, part in parts.items():
        lines += [f"## {title.capitalize()}", "", "| " + " | ".join(HEADER) + " |"]
        lines += ["|---|---|---|---|---:|---:|---|---:|---|"]
        lines += ["| " + " | ".join(row.cells) + " |" for row in part] + [""]
    return "\n".join(lines).rstrip() + "\n"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three small data sets")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="instances whose label contains a name")
    parser.add_argument("--rows", type=Path, help="file of rows that are done, to go on from and to add to")
    parser.add_argument("--out", type=Path, help="report to write (default: REAL.md here, for the whole suite)")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    warnings.simplefilter("ignore")
    names = QUICK if options.quick else options.only
    suite = [instance for instance in SUITE if not names or any(name in instance.label for name in names)]
    out = options.out if options.out is not None else None if names else HERE / "REAL.md"
    command = "attsvm bench --real" + (" --quick" if options.quick else "")
    load, made = os.getloadavg()[0], {}
    rows: dict[str, Row] = {}
    if options.rows is not None and options.rows.exists():
        done = {entry["label"]: entry for entry in map(json.loads, options.rows.read_text().splitlines())}
        rows = {one.label: Row.read(one, done[one.label]) for one in suite if one.label in done}
    warm()
    text = ""
    try:
        for instance in suite:
            if instance.label not in rows:
                if instance.name not in made:
                    made = {instance.name: instance.make()}
                row = compare(instance, made[instance.name], QUICK_LIMIT if options.quick else LIMIT)
                rows[instance.label] = row
                print(" | ".join(row.cells), flush=True)
                if options.rows is not None:
                    with options.rows.open("a") as lines:
                        lines.write(row.line())
            text = markdown([rows[one.label] for one in suite if one.label in rows], command, len(suite), load)
            if out is not None:
                with replacing_file(out) as temporary:
                    temporary.write_text(text, encoding="utf-8")
    except KeyboardInterrupt:
        print("Interrupted; what is done was kept." if out else "Interrupted.", file=sys.stderr)
        return 130
    print("\n" + text.split("\n## ")[0].rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
