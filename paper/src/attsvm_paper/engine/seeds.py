"""Seeds that depend only on the trial, not on the time, machine or batch of its run.

The seed of a trial is a hash of the root seed, the experiment's name, the fields of its config in `instance`, and its
index. A subset of the cells, or another number of trials, workers or shards, therefore has the same instances. Two
cells that differ only in the parameterisation are compared on equal instances. SHA-256, unlike `hash()`, is the same on
every machine and in every process; `numpy.random.SeedSequence` spreads the digest and the index over the bits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np


def trial_seeds(root: int, experiment: str, instance: dict[str, Any], trials: Iterable[int]) -> np.ndarray:
    """Derive the seeds of some trials of a cell.

    Parameters
    ----------
    root : int
        The root seed of the run, not negative.
    experiment : str
    instance : dict
        The fields of the config that the seeds depend on; 10 and 10.0 count as the same number.
    trials : iterable of int
        Indices of the trials, from 0.

    Returns
    -------
    ndarray of int64, shape (trials,)
        Not negative, as NumPy and torch require.

    Raises
    ------
    ValueError
        If the root seed is not a non-negative integer.
    """
    if isinstance(root, bool) or not isinstance(root, int) or root < 0:
        raise ValueError(f"seed is {root!r}; an integer of at least 0 was expected.")
    plain = {name: _plain(value) for name, value in instance.items()}
    digest = hashlib.sha256(json.dumps([root, experiment, plain], sort_keys=True).encode()).digest()
    words = np.frombuffer(digest, dtype="<u4").tolist()
    states = [
        np.random.SeedSequence(words, spawn_key=(trial,)).generate_state(1, np.uint64)[0] >> np.uint64(1)
        for trial in trials
    ]
    return np.array(states, dtype=np.int64)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
