"""The function :func:`train`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from attsvm.core.types import Backend, LossName, Numerics, Parameterization
from attsvm.data.token_data import TokenData
from attsvm.nn.losses import Loss
from attsvm.platform.kernels import Stopwatch
from attsvm.training.optimisers.descent import Optimizer
from attsvm.training.optimisers.registry import OptimizerName
from attsvm.training.optimisers.schedule import Schedule
from attsvm.training.risk.embeddings import Vocabulary
from attsvm.training.risk.objective import Objective
from attsvm.training.run.batches import Batches, entropy_of
from attsvm.training.run.foreign import Factory
from attsvm.training.run.recording import record_steps, run
from attsvm.training.run.setup import (
    TrainingSetup,
    companions_of,
    rule_of,
    start_of,
    weighted,
    with_noise,
    working_dtype,
)
from attsvm.training.run.trace import Trace


def train(
    data: TokenData,
    head: Any,
    *,
    parameterization: Parameterization = "W",
    rank: int | None = None,
    heads: int = 1,
    head_lr: float | None = None,
    vocabulary: Vocabulary | None = None,
    embedding_lr: float | None = None,
    loss: LossName | Loss | Callable[[Tensor], Tensor] = "logistic",
    optimizer: OptimizerName | Optimizer | Factory = "normalized_gd",
    steps: int = 1000,
    lr: float | None = None,
    schedule: Schedule | None = None,
    weight_decay: float | None = None,
    batch_size: int | None = None,
    replacement: bool = False,
    sample_weight: Any = None,
    label_noise: float = 0.0,
    held_out: TokenData | None = None,
    init: Any = None,
    record_every: int | Sequence[int] | None = None,
    seed: int | Sequence[int] | np.ndarray = 0,
    dtype: Any = None,
    numerics: Numerics = "exact",
    backend: Backend = "auto",
    callback: Callable[[int, int], bool | None] | None = None,
) -> Trace:
    r"""Train one attention layer on every trial of `data` at once.

    The model is :math:`h(X_i^\top \mathrm{softmax}(X_i W z_i))` with a fixed head h. It trains W, or K and Q with
    :math:`W = KQ^\top`, on the mean loss of :math:`Y_i h`.

    Parameters
    ----------
    data : TokenData
        Leading dimensions are independent trials.
    head : array (dv,) or (..., dv), or module
        Vector v of the linear head v^T x, or any torch module that maps (B, n, dv) to (B, n).
    parameterization : {"W", "KQ"}
    rank : int, optional
        Width of K and Q; min(d, dz) by default.
    heads : int
        Number H of attention heads, whose outputs are added before h. W is then (..., H, d, dz); v may differ per head,
        (..., H, dv). Heads with equal W and v stay equal, so give an `init`.
    head_lr : float, optional
        Rate at which the parameters of h are trained too, normalised if the optimizer is. Default: h is fixed. To train
        a value matrix V as well, use :class:`attsvm.nn.heads.ValueHead`.
    vocabulary : Vocabulary, optional
        A table of embeddings, and the row of every token (and optionally query) of `data`.
    embedding_lr : float, optional
        Rate at which the table is trained too, normalised if the optimizer is. Default: the table is fixed.
    loss : {"logistic", "exponential", "correlation", "log"} or callable
        See :mod:`attsvm.nn.losses`.
    optimizer : str, Optimizer or callable
        A name of :data:`attsvm.training.optimisers.registry.OPTIMIZERS`; "normalized_gd" by default. Or a factory such
        as ``lambda params: torch.optim.Muon(params, lr=0.02)``: each trial's [W] or [K, Q] then gets a separate torch
        optimiser and the exact gradient.
    steps : int
    lr : float, optional
        Step size. The default depends on the optimizer: 0.1 for normalised descent on W, and 0.5 (times
        ||(K,Q)||/sqrt(k)) on K and Q.
    schedule : {"constant", "sqrt", "linear", "exponential"} or callable, optional
        Factor of the step size as a function of k = 1, 2, ...; for a torch optimiser, factor of its learning rates.
    weight_decay : float, optional
        Decoupled: W, or K and Q, are multiplied by 1 - step size * weight_decay before each step. The default depends
        on the optimizer: 0.01 for "adamw", otherwise none.
    batch_size : int, optional
        Number of queries in the gradient of a step; all by default.
    replacement : bool
        Draw every batch independently; otherwise each epoch runs through a new permutation of the queries.
    sample_weight : array, shape (n,) or (..., n), optional
        Weights of the queries in the risk, scaled to mean one.
    label_noise : float
        Probability that the label of a training query is flipped, once before training.
    held_out : TokenData, optional
        Test data of the same trials; see ``Trace.held_out_loss`` and ``Trace.held_out_accuracy``.
    init : None, "zero", "torch", "aligned", array (d, dz), or pair (K, Q)
        None: W = 0; for K and Q, K = 0.1 N(0, 1) and Q = 0. "torch": torch's Linear default, as published. "aligned":
        balanced K and Q whose columns are the singular vectors of the first gradient. Arrays may include the trial
        dimensions.
    record_every : int or list of int, optional
        Steps to record; by default the first and the last, which are always recorded.
    seed : int, or one int per trial
        Seed of random starts, mini-batches and label noise. If it is one integer, trial j draws from (seed, j).
    dtype : optional
        Dtype of computation and result; by default computation in float64 and the result in the data's dtype.
    numerics : {"exact", "autograd"}
        "autograd" differentiates plain softmax, for comparison.
    backend : {"auto", "torch", "compiled"}
        The compiled loop is for small trials of linear heads on the CPU in float64; "auto" uses it when possible.
    callback : callable (step, steps) -> bool or None, optional
        Called about a hundred times per run and at each record; returning True stops training.

    Returns
    -------
    Trace
        NumPy arrays for NumPy data, tensors on the same device for tensors.

    Raises
    ------
    ValueError
        If an argument does not fit; the message names it.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import TokenData, correlation, solve, train
    >>> data = TokenData(np.array([[[1.0, 0.0], [0.0, 0.0]]]), np.array([[1.0, 1.0]]), np.array([1.0]))
    >>> trace = train(data, np.array([1.0, 0.0]), steps=200)
    >>> round(float(correlation(trace.W[-1], solve(data.problem([0])).W)), 6)
    1.0
    """
    _check(
        data,
        {
            "parameterization": (parameterization, ("W", "KQ")),
            "numerics": (numerics, ("exact", "autograd")),
            "backend": (backend, ("auto", "torch", "compiled")),
        },
        {"steps": (steps, 0), "heads": (heads, 1)},
        callback,
    )
    watch = Stopwatch()
    work, out = working_dtype(dtype, data)
    entropy = entropy_of(seed, math.prod(data.batch_shape))
    data, flipped = with_noise(data, label_noise, entropy)
    rule = rule_of(optimizer, parameterization, lr, schedule, weight_decay)
    objective = Objective.from_data(data, head, loss, work, numerics, heads, train_head=head_lr is not None)
    objective = weighted(objective, data, sample_weight)
    setup = TrainingSetup(
        data=data,
        flipped=flipped,
        dtype=out,
        objective=objective,
        evaluation=None if held_out is None else objective.on(held_out),
        rule=rule,
        params=start_of(init, parameterization, rank, data, seed, objective, heads),
        companions=companions_of(
            objective,
            data,
            head_lr,
            vocabulary,
            embedding_lr,
            normalized=getattr(rule, "normalized", False),
            alone=batch_size is None and held_out is None,
        ),
        batches=None if batch_size is None else Batches(data.n, batch_size, replacement, entropy),
    )
    engine = setup.engine(schedule, backend)
    records, count, cancelled = run(engine, record_steps(record_every, int(steps)), int(steps), callback)
    return setup.trace(engine, records, count, cancelled=cancelled, seconds=watch.seconds)


def _check(
    data: Any, choices: dict[str, tuple[str, tuple[str, ...]]], counts: dict[str, tuple[Any, int]], callback: Any
) -> None:
    """Refuse invalid data, words, numbers and callbacks before anything is computed."""
    if not isinstance(data, TokenData):
        raise ValueError(f"data has type {type(data).__name__}; attsvm.TokenData was expected.")
    for name, (value, words) in choices.items():
        if value not in words:
            raise ValueError(f"{name} is {value!r}; one of {', '.join(map(repr, words))} was expected.")
    for name, (number, least) in counts.items():
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < least:
            kind = "positive" if least else "non-negative"
            raise ValueError(f"{name} is {number!r}; a {kind} integer was expected.")
    if callback is not None and not callable(callback):
        raise ValueError(f"callback has type {type(callback).__name__}; a callable (step, steps) was expected.")
