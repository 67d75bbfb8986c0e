"""The stages of a study, in order."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

import numpy as np

from attsvm.core.correlation import correlation
from attsvm.core.types import Numerics, Parameterization
from attsvm.data.dataset import Dataset
from attsvm.platform.kernels import compiled_first
from attsvm.platform.threads import one_thread
from attsvm.solvers.solving import solve
from attsvm.study.accuracy import accuracies
from attsvm.study.bag_report import report_bags
from attsvm.study.controls import controls
from attsvm.study.head import fit_head
from attsvm.study.labels import shuffled_labels
from attsvm.study.results import PrecisionRun, Run, Settings, Setup, Study
from attsvm.study.training import LONGER, SOLVING, TRAINING, record_steps, train_and_solve
from attsvm.study.watch import Progress, Watch
from attsvm.theory.tokens import Trial

# Sentence and usual share of the time of each stage.
BAGS = "Training attention and head together, and certifying what they select"
FEASIBILITY = "Deciding whether one W can select all best tokens"
LABELS = {"W": "Training W on shuffled labels", "KQ": "Training K and Q on shuffled labels"}
PRECISION: dict[tuple[str, Numerics], str] = {
    ("float32", "exact"): "Training W again in float32 with the exact gradient",
    ("float64", "autograd"): "Training W again in float64 with plain autograd",
    ("float32", "autograd"): "Training W again in float32 with plain autograd",
}
STAGES = {FEASIBILITY: 2.0, BAGS: 0.0}
for _name, _training, _solving, _labels in (("W", 5.0, 3.0, 1.0), ("KQ", 8.0, 6.0, 2.0)):
    # Continued training gets no share, because its number of rounds is unknown beforehand.
    STAGES |= {TRAINING[_name]: _training, LONGER[_name]: 0.0, SOLVING[_name]: _solving, LABELS[_name]: _labels}
STAGES |= dict.fromkeys(PRECISION.values(), 3.0)

# Default training set: share of the rows, largest number of entries (rows x tokens x d), and least number of rows. Then
# 20,000 steps per run take about two minutes on one core.
DEFAULT_SHARE, DEFAULT_ENTRIES, LEAST_TRAIN = 0.75, 1_000_000, 100
# Largest number of steps: float32 loses the direction within a few hundred, float64 within a thousand.
PRECISION_STEPS = 5000


def default_train(data: Dataset) -> int:
    """Return the default number of training rows: three quarters, or what takes two minutes."""
    n, T, d = data.tokens.tokens.shape
    most = max(LEAST_TRAIN, DEFAULT_ENTRIES // (T * d)) if data.default_train is None else data.default_train
    return min(max(1, int(DEFAULT_SHARE * n)), most)


def prepare(data: Dataset, settings: Settings) -> Setup:
    """Split, standardise or centre, scale, fit the head and score the tokens.

    Raises ValueError if there is only one row or one label, nothing to select from, fewer rows than requested, or
    tokens or queries are all zero.
    """
    _check_choices(data)
    count = default_train(data) if settings.train is None else settings.train
    train, test = data.split(count, np.random.default_rng((settings.seed, 0)))
    if data.standardise:
        visible = train.tokens.tokens[train.mask]
        mean, spreads = visible.mean(axis=0), visible.std(axis=0)
        spreads = np.where(spreads > 0, spreads, 1.0)
        train, test = train.standardised(mean, spreads), None if test is None else test.standardised(mean, spreads)
    if data.centre:
        mean = train.tokens.queries.mean(axis=0)
        spread = float(np.linalg.norm(train.tokens.queries - mean, axis=1).mean()) or 1.0
        train, test = train.centred(mean, spread), None if test is None else test.centred(mean, spread)
    token_scale = float(np.linalg.norm(train.tokens.tokens, axis=2)[train.mask].mean())
    query_scale = float(np.linalg.norm(train.tokens.queries, axis=1).mean())
    for name, scale in (("tokens", token_scale), ("queries", query_scale)):
        if scale == 0:
            raise ValueError(
                f"{name} of shape {getattr(train.tokens, name).shape} are all zero in the training rows; "
                "other numbers were expected."
            )
    train = train.scaled(token_scale, query_scale)
    test = None if test is None else test.scaled(token_scale, query_scale)
    head = fit_head(train)
    return Setup(train, test, token_scale, query_scale, data.centre, head, Trial.of(train.tokens, head.v))


def _check_choices(data: Dataset) -> None:
    """Refuse data with fewer than two rows, two labels, or two tokens to select from."""
    labels = np.unique(data.tokens.labels)
    if data.tokens.n < 2:
        raise ValueError(f"{data.name} has one row; two or more were expected.")
    if len(labels) < 2:
        raise ValueError(f"labels of {data.name} are all {labels[0]:+g}; -1 and +1 were expected.")
    if data.mask.sum(axis=1).max() < 2:
        raise ValueError(f"{data.name} has one visible token in every row; two to choose from were expected.")


def train_and_compare(setup: Setup, settings: Settings, parameterization: Parameterization, watch: Watch) -> Run:
    """Train, solve the SVMs of the realised tokens, and compare with controls.

    If stopped during training, the training so far is compared and the controls are omitted.
    """
    run = train_and_solve(setup, settings, parameterization, watch)
    if watch.inside(0.3):
        return run
    arguments = (settings.shuffles, settings.seed, settings.time_limit, watch)
    try:
        return replace(run, controls=controls(setup, run.trace.W, run.selected, run.own, *arguments))
    except KeyboardInterrupt:  # a second Ctrl-C omits the controls and keeps the training
        watch.interrupt()
        return run


def train_in(
    setup: Setup, settings: Settings, dtype: str, numerics: Numerics, reference: Run, watch: Watch
) -> PrecisionRun:
    """Repeat the training of W in another arithmetic; needs the Frobenius SVM of the reference run."""
    from attsvm.training import train

    steps = min(settings.steps, PRECISION_STEPS)
    trace = train(
        setup.train.tokens,
        setup.head.v,
        steps=steps,
        lr=settings.lr,
        record_every=record_steps(steps),
        dtype=dtype,
        numerics=numerics,
        callback=lambda step, total: watch.inside(step / total),
    )
    curve = np.asarray(correlation(trace.W.astype(float), reference.solutions["frobenius"].W))
    return PrecisionRun(dtype, numerics, trace.step, curve, trace.seconds)


def study(data: Dataset, settings: Settings | None = None, progress: Progress | None = None) -> Study:
    """Test whether attention trained on a data set becomes the max-margin selector of its realised tokens.

    Parameters
    ----------
    progress : callable, optional
        Called with the sentence of the current stage and the fraction done; returning True stops the study, which then
        holds the completed stages.

    Raises
    ------
    ValueError
        If the data cannot be split, scaled or given a head as requested.

    Examples
    --------
    >>> from attsvm.data.digits import digits
    >>> from attsvm.study import Settings, study
    >>> result = study(digits(), Settings(train=10, steps=100, shuffles=1))
    >>> result.optimal.status.name
    'OPTIMAL'
    """
    settings = settings or Settings()
    return run(prepare(data, settings), settings, progress)


def run(setup: Setup, settings: Settings, progress: Progress | None = None) -> Study:
    """Run the stages of :func:`study` on data from :func:`prepare`."""
    start = time.perf_counter()
    watch = Watch(progress, STAGES)
    result = Study(settings, setup)
    with one_thread(), compiled_first():
        try:
            _fill(result, watch)
        except KeyboardInterrupt:  # a second Ctrl-C ends the current stage at once; completed stages are kept
            watch.interrupt()
        result.complete, result.stopped_in = not watch.stopped, watch.stopped_in
        with suppress(KeyboardInterrupt):
            result.accuracies = accuracies(result)
    result.seconds = time.perf_counter() - start
    return result


def _fill(result: Study, watch: Watch) -> None:
    setup, settings = result.setup, result.settings
    if not watch.enter(FEASIBILITY):
        return
    problem = setup.trial.problem(setup.optimal)
    result.optimal = solve(problem, time_limit=settings.time_limit, callback=watch.poll)
    if setup.train.bags is not None:
        if not watch.enter(BAGS):
            return
        result.bags = report_bags(setup, settings)
    for parameterization in ("W", "KQ"):
        if not watch.enter(TRAINING[parameterization]):
            return
        result.runs[parameterization] = train_and_compare(setup, settings, parameterization, watch)
        if not watch.enter(LABELS[parameterization]):
            return
        control = shuffled_labels(setup, settings, parameterization, watch)
        if control is not None:
            result.shuffled_labels[parameterization] = control
    if "frobenius" not in result.runs["W"].curves:
        return
    for (dtype, numerics), stage in PRECISION.items():
        if not watch.enter(stage):
            return
        run = train_in(setup, settings, dtype, numerics, result.runs["W"], watch)
        if watch.stopped:
            return
        result.precision += (run,)
