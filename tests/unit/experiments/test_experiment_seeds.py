"""Seeds: what they depend on, and what they must not depend on."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm_paper.engine.seeds import trial_seeds
from attsvm_paper.published.instances import start_seeds


def test_a_subset_or_more_trials_see_the_same_seeds() -> None:
    whole = trial_seeds(0, "tiny", {"d": 3, "n": 5}, range(50))
    np.testing.assert_array_equal(trial_seeds(0, "tiny", {"d": 3, "n": 5}, range(20)), whole[:20])
    np.testing.assert_array_equal(trial_seeds(0, "tiny", {"n": 5.0, "d": 3}, [7, 3]), whole[[7, 3]])


def test_whatever_names_a_trial_changes_its_seed() -> None:
    names = [
        trial_seeds(root, experiment, {"d": d, "text": text}, range(100))
        for root in (0, 1)
        for experiment in ("tiny", "other")
        for d in (2, 2.5, 3)
        for text in ("1", "2")
    ]
    seeds = np.concatenate(names)
    assert seeds.dtype == np.int64
    assert (seeds >= 0).all()
    # 2,400 numbers of 63 bits collide with probability 3e-13.
    assert len(np.unique(seeds)) == len(seeds)
    assert 0.2 < np.mean(seeds > 2**62) < 0.8


def test_seeds_are_the_same_in_every_process_and_release() -> None:
    """Rows of one version must be comparable with those of the next: the values themselves are the promise."""
    assert trial_seeds(0, "a", {"d": 10}, range(2)).tolist() == [8481259518062739053, 7837814078600000303]


@pytest.mark.parametrize("root", [-1, 1.0, True, "0"])
def test_a_bad_root_is_named(root) -> None:
    with pytest.raises(ValueError, match="seed is"):
        trial_seeds(root, "a", {}, [0])


def test_a_start_has_the_second_stream_of_its_seed() -> None:
    """Never that of the instance, and the same in every release."""
    streams = [np.random.SeedSequence(seed).spawn(2)[1] for seed in (0, 2**62)]
    numbers = [int(stream.generate_state(1, np.uint64)[0]) // 2 for stream in streams]
    assert start_seeds([0, 2**62]).tolist() == numbers
