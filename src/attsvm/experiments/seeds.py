"""Seeds that depend on what a trial is, never on when, where or beside what it runs.

The seed of a trial is a hash of the root seed, the experiment's name, those fields of its config that `instance` names,
and its index. Hence a subset of the cells, another number of trials, of workers or of shards sees the same instances,
and two cells that differ in the parameterisation only are compared on equal terms. SHA-256 is the same on every machine
and in every process, which `hash()` is not; `numpy.random.SeedSequence` spreads the digest and the index over the bits.
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
        Not negative, so that NumPy and torch both take them.

    Raises
    ------
    ValueError
        If the root seed is no integer of at least 0.
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
