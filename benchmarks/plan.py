"""The instances of each contestant, with their time limits."""

from __future__ import annotations

from dataclasses import dataclass

from instances import Instance
from peers import CONTESTANTS, LIBLINEAR, OFFICIAL, Contestant

FROBENIUS, NUCLEAR, SUM, LARGEST = "frobenius", "nuclear", "1", "max"
NORMS = (FROBENIUS, NUCLEAR, SUM, LARGEST)
# Linear programs: few constraints on many entries, and many constraints on few entries.
LINEAR = (
    Instance("planted", (10, 5, 30)),
    Instance("off", (6, 8, 10)),
    Instance("planted", (20, 8, 16)),
    Instance("infeasible", (30, 10, 6)),
)
TABLES: dict[str, tuple[Instance, ...]] = {
    FROBENIUS: (
        Instance("off", (6, 8, 10)),
        Instance("off", (15, 15, 20)),
        Instance("planted", (50, 20, 20)),
        Instance("planted", (100, 32, 32)),
        Instance("planted", (200, 32, 64)),
        Instance("planted", (1000, 64, 64)),
        Instance("digits", (60, 16, 20)),
        Instance("digits", (40, 16, 80)),
        Instance("hidden", (60, 16, 32)),
        Instance("infeasible", (30, 10, 6)),
        Instance("infeasible", (200, 32, 16)),
        Instance("classes", (750, 15, 25)),
        Instance("one-hot", (160, 24, 24)),
    ),
    NUCLEAR: (
        Instance("off", (6, 8, 10)),
        Instance("off", (15, 15, 20)),
        Instance("planted", (50, 20, 20)),
        Instance("planted", (100, 32, 32)),
        Instance("planted", (200, 32, 64)),
        Instance("digits", (20, 16, 20)),
        Instance("hidden", (20, 16, 16)),
        Instance("infeasible", (30, 10, 6)),
        Instance("classes", (750, 15, 25)),
        Instance("one-hot", (160, 24, 24)),
    ),
    SUM: LINEAR,
    LARGEST: LINEAR,
}
# Instances that suit a dual active-set method: one shared query, more queries than dimensions, and little data. Also
# ties, which among the others only this method gets as equalities.
RIVAL = "daqp primal"
RIVALS = (
    Instance("shared", (1000, 10, 20)),
    Instance("planted", (2000, 16, 3)),
    Instance("planted", (5000, 16, 4)),
    Instance("planted", (2, 2, 2)),
    Instance("planted", (4, 4, 4)),
    Instance("several", (100, 32, 24)),
)
QUICK: dict[str, tuple[Instance, ...]] = {
    FROBENIUS: (
        Instance("off", (6, 8, 10)),
        Instance("digits", (10, 16, 20)),
        Instance("infeasible", (20, 6, 4)),
    ),
    NUCLEAR: (Instance("off", (6, 8, 10)),),
}
TINY: dict[str, tuple[Instance, ...]] = {
    FROBENIUS: (Instance("off", (4, 4, 5)), Instance("infeasible", (20, 6, 3))),
    NUCLEAR: (),
}
TINY_CONTESTANTS = {"attsvm 1e-09", "daqp primal", "quadprog dual"}
LARGE: dict[str, tuple[Instance, ...]] = {
    FROBENIUS: (Instance("off", (1000, 64, 64)), Instance("planted", (5000, 64, 64))),
    NUCLEAR: (Instance("planted", (850, 64, 64)),),
}
MAPPED = Instance("mapped", (20000, 64, 64))

LIMIT, QUICK_LIMIT, LARGE_LIMIT = 10.0, 2.0, 1800.0
# Goals are ratios to these contestants, so they get enough time.
LIMITS = {
    (OFFICIAL, FROBENIUS, Instance("planted", (100, 32, 32))): 100.0,
    (OFFICIAL, NUCLEAR, Instance("planted", (100, 32, 32))): 90.0,
    (LIBLINEAR, FROBENIUS, Instance("planted", (1000, 64, 64))): 120.0,
    ("clarabel", NUCLEAR, Instance("classes", (750, 15, 25))): 60.0,
}
OURS_LIMIT = 120.0

# Growth: one size varies, the others are fixed.
AXES: dict[str, tuple[Instance, ...]] = {
    "n": tuple(Instance("planted", (n, 16, 16)) for n in (12, 25, 50, 100, 200, 400, 800)),
    "T": tuple(Instance("planted", (25, T, 16)) for T in (4, 8, 16, 32, 64, 128, 256)),
    "d": tuple(Instance("planted", (50, 16, d)) for d in (4, 8, 16, 32, 64)),
}
GROWERS = {
    FROBENIUS: ("attsvm 1e-09", "daqp primal", LIBLINEAR, "piqp primal", OFFICIAL),
    NUCLEAR: ("attsvm 1e-09", "clarabel", "scs", OFFICIAL),
}
GROWTH_LIMIT, GROWTH_EFFORT = 3.0, 0.3


@dataclass(frozen=True)
class Cell:
    """One contestant on one instance; ``axis`` names a growth curve, or is empty for the tables."""

    who: Contestant
    instance: Instance
    limit: float
    effort: float = 1.0
    axis: str = ""
    mapped: bool = False

    @property
    def family(self) -> str:
        """Name of the family in which larger cells are skipped once a cell reaches its limit."""
        return self.axis or {"off": "random", "planted": "random"}.get(self.instance.family, self.instance.family)


def cells(mode: str) -> list[Cell]:
    """List all cells of a mode ("tiny", "quick", "full", "large"), grouped by contestant."""
    out: list[Cell] = []
    for who in CONTESTANTS:
        if mode == "tiny" and who.name not in TINY_CONTESTANTS:
            continue
        tables = {"tiny": TINY, "quick": QUICK}.get(mode, TABLES)
        quick = mode in ("tiny", "quick")
        for instance in tables.get(who.norm, ()):
            limit = QUICK_LIMIT if quick else OURS_LIMIT if who.ours else LIMIT
            limit = limit if quick else LIMITS.get((who.name, who.norm, instance), limit)
            out.append(Cell(who, instance, limit, effort=0.1 if quick else 1.0))
        if not quick and who.norm == FROBENIUS and (who.ours or who.name == RIVAL):
            out += [Cell(who, instance, OURS_LIMIT) for instance in RIVALS]
        if not quick and who.name in GROWERS.get(who.norm, ()):
            out += [
                Cell(who, instance, GROWTH_LIMIT, GROWTH_EFFORT, axis)
                for axis, along in AXES.items()
                for instance in along
            ]
        if mode == "large" and who.ours:
            out += [Cell(who, instance, LARGE_LIMIT) for instance in LARGE.get(who.norm, ())]
            if who.norm == FROBENIUS and who.name == "attsvm 1e-06":
                out.append(Cell(who, MAPPED, LARGE_LIMIT, mapped=True))
    return out
