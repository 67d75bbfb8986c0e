"""Accuracy of the same training on random labels.

The theory holds for any labels: trained on permuted labels, attention still becomes a max-margin selector. Whether it
*learnt* anything is a separate question, which no direction answers. The control is the whole procedure, head and
attention, on permuted labels, tested on held-out rows.

Labels are permuted among all rows, including held-out ones. If tokens carry no information about labels, every
permutation is as likely as the data, and the shares are draws from chance (Fisher's permutation test). Permuting only
the training labels would be wrong: tokens with one strong direction would give shares near 0 and near 1, since the sign
of the fitted head is random.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.core.types import Parameterization
from attsvm.data.token_data import TokenData
from attsvm.study.accuracy import share_right, soft_attention
from attsvm.study.head import fit_head
from attsvm.study.results import Settings, Setup, ShuffledLabels
from attsvm.study.watch import Watch
from attsvm.theory.tokens import Trial

# Number of steps after which accuracy on the digits changes by less than 2 %.
LABEL_STEPS = 500


def shuffled_labels(
    setup: Setup, settings: Settings, parameterization: Parameterization, watch: Watch
) -> ShuffledLabels | None:
    """Fit the head and train attention on permuted labels, several times, and test each on held-out rows.

    Parameters
    ----------
    parameterization : {"W", "KQ"}

    Returns
    -------
    ShuffledLabels or None
        None if nothing is held out, no shuffle was requested, or the study was stopped before the first one ended.
    """
    if setup.test is None:
        return None
    from attsvm.training import train

    rng = np.random.default_rng((settings.seed, 3))
    steps = min(settings.steps, LABEL_STEPS)
    training, held_out = [], []
    fitted, test = setup.train.tokens, setup.test.tokens
    labels = np.concatenate([fitted.labels, test.labels])
    for number in range(settings.shuffles):
        permuted = rng.permutation(labels)
        tokens = TokenData(fitted.tokens, fitted.queries, permuted[: fitted.n], fitted.mask)
        held_out_tokens = TokenData(test.tokens, test.queries, permuted[fitted.n :], test.mask)
        head = fit_head(replace(setup.train, tokens=tokens))
        trace = train(
            tokens,
            head.v,
            parameterization=parameterization,
            steps=steps,
            lr=settings.lr if parameterization == "W" else None,
            seed=int(rng.integers(2**31)),
            callback=lambda step, total, number=number: watch.inside((number + step / total) / settings.shuffles),
        )
        if trace.stopped:
            break
        W = np.asarray(trace.W[-1])
        for data, shares in ((tokens, training), (held_out_tokens, held_out)):
            trial = Trial.of(data, head.v)
            shares.append(share_right(trial, soft_attention(trial, W)))
        if watch.inside((number + 1) / settings.shuffles):
            break
    return ShuffledLabels(np.array(training), np.array(held_out), steps) if held_out else None
