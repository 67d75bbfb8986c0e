"""Certificate files: size, time to write and check, and the proven interval of a nuclear optimum.

    OMP_NUM_THREADS=1 python benchmarks/certificate_files.py

Processor seconds; a Gaussian matrix selects the tokens of the instances.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from instances import planted

from attsvm import SelectionProblem, check, solve

SIZES = ((6, 5, 4), (100, 32, 32))
NORMS = ("frobenius", "nuclear")


def main() -> None:
    """Print the table."""
    print("| (n, T, d) | norm | kB | writing, s | checking, s | face | tail |\n|---|---|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.json"
        for sizes in SIZES:
            for norm in NORMS:
                solution = solve(SelectionProblem(**planted(*sizes)), norm, tol=1e-12)
                start = time.process_time()
                solution.save(path)
                write_end = time.process_time()
                claims = check.check(json.loads(path.read_text(encoding="utf-8")))
                check_end = time.process_time()
                face, tail = ("", "") if norm != "nuclear" else (claims["face"], f"{float(claims['tail']):.0e}")
                print(
                    f"| {sizes} | {norm} | {path.stat().st_size / 1000:.0f} | {write_end - start:.3f} "
                    f"| {check_end - write_end:.3f} | {face} | {tail} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
