"""train(): the one door to training."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.core.interop import is_tensor, to_numpy
from attsvm.core.kernels import Stopwatch
from attsvm.core.types import Array, Backend, LossName, Numerics, OptimizerName, Parameterization
from attsvm.data.token_data import TokenData
from attsvm.nn.losses import Loss
from attsvm.training.batches import Batches, entropy_of, flips
from attsvm.training.descent import Optimizer
from attsvm.training.embeddings import EmbeddingTraining, Vocabulary
from attsvm.training.engine import CompiledEngine, Engine, TorchEngine, can_compile
from attsvm.training.foreign import Factory, ForeignEngine
from attsvm.training.initial import aligned_factors, initial_parameters
from attsvm.training.joint import Companion, JointTraining
from attsvm.training.limits import notice
from attsvm.training.objective import Objective
from attsvm.training.recording import record_steps, run
from attsvm.training.registry import make_optimizer
from attsvm.training.schedule import Schedule
from attsvm.training.trace import Trace


def _working_dtype(dtype: Any, data: TokenData) -> tuple[torch.dtype, Any]:
    """Return the dtype to compute in and the dtype (of the data's kind) to return."""
    if dtype is None:
        return torch.float64, data.tokens.dtype
    name = str(dtype).removeprefix("torch.") if isinstance(dtype, (str, torch.dtype)) else np.dtype(dtype).name
    if name not in ("float64", "float32"):
        raise ValueError(f"dtype is {dtype!r}; float64 or float32 was expected.")
    work = getattr(torch, name)
    return work, work if is_tensor(data.tokens) else np.dtype(name)


def _with_flips(data: TokenData, wrong: np.ndarray) -> TokenData:
    """Return the data with the labels that are marked, (B, n), flipped."""
    signs = np.where(wrong.reshape(data.labels.shape), -1.0, 1.0)
    labels = data.labels * (torch.as_tensor(signs).to(data.labels) if is_tensor(data.labels) else signs)
    values = None if data.values is data.tokens else data.values
    return TokenData(data.tokens, data.queries, labels, data.mask, values)


def _engine(
    objective: Objective,
    rule: Optimizer | Factory,
    params: list[Tensor],
    schedule: Schedule | None,
    companions: list[Companion],
    batches: Batches | None,
    backend: str,
) -> Engine:
    """Choose what runs the steps."""
    if not isinstance(rule, Optimizer):
        if companions or backend == "compiled":
            raise ValueError(
                "optimizer is a factory of torch optimisers; head_lr=None, embedding_lr=None and the torch backend "
                "were expected."
            )
        return ForeignEngine(objective, rule, params, schedule, batches)
    beside = "training more than attention" if companions else "mini-batches" if batches else None
    obstacle = beside or can_compile(objective, rule, params)
    if backend == "compiled" and obstacle:
        raise ValueError(
            f"backend is 'compiled', but the compiled loop does not do {obstacle}; 'torch' or 'auto' was expected."
        )
    if backend == "torch" or obstacle:
        return TorchEngine(objective, rule, params, companions, batches)
    return CompiledEngine(objective, rule, params)


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

    The model is :math:`h(X_i^\top \mathrm{softmax}(X_i W z_i))` with the head h fixed and W, or K and Q with
    :math:`W = KQ^\top`, trained on the mean loss of :math:`Y_i h`.

    Parameters
    ----------
    data : TokenData
        Leading dimensions are independent trials.
    head : array (dv,) or (..., dv), or module
        v of the linear head v^T x, or any torch module that maps (B, n, dv) to (B, n).
    parameterization : {"W", "KQ"}
    rank : int, optional
        Width of K and Q; min(d, dz) by default.
    heads : int
        Number H of attention heads, whose outputs are added before h. W is then (..., H, d, dz); v may be one for each
        attention head, (..., H, dv). From W = 0 equal heads stay equal: give an `init`.
    head_lr : float, optional
        Train the parameters of h too, at this rate and normalised if the optimizer is; by default h is fixed. A value
        matrix V is trained as part of a head, :class:`attsvm.nn.heads.ValueHead`.
    vocabulary : Vocabulary, optional
        Which row of a table every token, and perhaps query, of `data` is.
    embedding_lr : float, optional
        Train that table too, at this rate and normalised if the optimizer is.
    loss : {"logistic", "exponential", "correlation", "log"} or callable
        See :mod:`attsvm.nn.losses`.
    optimizer : str, Optimizer or callable
        A name of :data:`attsvm.training.registry.OPTIMIZERS`; "normalized_gd" by default. Or a factory such as
        ``lambda params: torch.optim.Muon(params, lr=0.02)``: each trial's [W] or [K, Q] then gets a torch optimiser of
        its own, and the exact gradient.
    steps : int
    lr : float, optional
        Step size; the default belongs to the optimizer: 0.1 for normalised descent on W, and 0.5 (times
        ||(K,Q)||/sqrt(k)) on K and Q.
    schedule : {"constant", "sqrt", "linear", "exponential"} or callable, optional
        Factor of the step size as a function of k = 1, 2, ...; of a torch optimiser, of the rates it was made with.
    weight_decay : float, optional
        Decoupled: W, or K and Q, are multiplied by 1 - step size * weight_decay before each step. The default belongs
        to the optimizer: 0.01 for "adamw", else none.
    batch_size : int, optional
        Queries whose gradient a step takes; all by default.
    replacement : bool
        Draw every batch on its own, or run through a new permutation of the queries each epoch.
    sample_weight : array, shape (n,) or (..., n), optional
        Weights of the queries in the risk, scaled to mean one.
    label_noise : float
        Probability that the label of a training query is flipped, once and before training.
    held_out : TokenData, optional
        Data of the same trials that is not trained on; see ``Trace.held_out_loss`` and ``Trace.held_out_accuracy``.
    init : None, "zero", "torch", "aligned", array (d, dz), or pair (K, Q)
        None: W = 0; for K and Q, K = 0.1 N(0, 1) and Q = 0. "torch": torch's Linear default, as published.
        "aligned": balanced K and Q whose columns are the singular vectors of the first gradient.
        Arrays may carry the trial dimensions.
    record_every : int or list of int, optional
        Steps to record; by default the first and the last, which are always recorded.
    seed : int or one int a trial
        For random starts, mini-batches and label noise; trial j of an integer seed draws from (seed, j).
    dtype : optional
        Computation and result dtype; by default the computation is in float64 and the result in the data's dtype.
    numerics : {"exact", "autograd"}
        "autograd" differentiates plain softmax, for comparison.
    backend : {"auto", "torch", "compiled"}
        The compiled loop serves small trials of linear heads on the CPU in float64; "auto" takes it where it can.
    callback : callable (step, steps) -> bool or None, optional
        Called some hundred times during a run and at each record; a true result stops training there.

    Returns
    -------
    Trace
        NumPy arrays for NumPy data, tensors on the same device for tensors.

    Raises
    ------
    ValueError
        If an argument does not fit; the sentence names it.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import TokenData, correlation, solve, train
    >>> data = TokenData(np.array([[[1.0, 0.0], [0.0, 0.0]]]), np.array([[1.0, 1.0]]), np.array([1.0]))
    >>> trace = train(data, np.array([1.0, 0.0]), steps=200)
    >>> round(float(correlation(trace.W[-1], solve(data.problem([0])).W)), 6)
    1.0
    """
    if not isinstance(data, TokenData):
        raise ValueError(f"data has type {type(data).__name__}; attsvm.TokenData was expected.")
    for name, value, choices in (
        ("parameterization", parameterization, ("W", "KQ")),
        ("numerics", numerics, ("exact", "autograd")),
        ("backend", backend, ("auto", "torch", "compiled")),
    ):
        if value not in choices:
            raise ValueError(f"{name} is {value!r}; one of {', '.join(map(repr, choices))} was expected.")
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 0:
        raise ValueError(f"steps is {steps!r}; a non-negative integer was expected.")
    if isinstance(heads, bool) or not isinstance(heads, (int, np.integer)) or heads < 1:
        raise ValueError(f"heads is {heads!r}; a positive integer was expected.")
    if callback is not None and not callable(callback):
        raise ValueError(f"callback has type {type(callback).__name__}; a callable (step, steps) was expected.")
    watch = Stopwatch()
    work, out = _working_dtype(dtype, data)
    entropy = entropy_of(seed, math.prod(data.batch_shape))
    wrong = flips(data.n, label_noise, entropy)
    data = _with_flips(data, wrong) if wrong.any() else data
    if isinstance(optimizer, (str, Optimizer)) or not callable(optimizer):
        rule: Any = make_optimizer(optimizer, parameterization, lr, schedule, weight_decay)
    elif lr is not None or weight_decay is not None:
        raise ValueError(
            "lr or weight_decay is given beside a factory of torch optimisers; they were expected in the factory."
        )
    else:
        rule = optimizer
    objective = Objective.from_data(data, head, loss, work, numerics, heads, train_head=head_lr is not None)
    if sample_weight is not None:
        weights = torch.as_tensor(to_numpy("sample_weight", sample_weight))
        batched = weights.ndim > 1 and tuple(weights.shape) == tuple(data.labels.shape)
        objective = objective.weighted(weights.reshape(-1, data.n) if batched else weights)
    evaluation = None if held_out is None else objective.on(held_out)
    if isinstance(init, str) and init == "aligned":
        params = aligned_factors(objective, parameterization, rank)
    else:
        params = initial_parameters(
            init, parameterization, rank, data.batch_shape, data.d, data.dz, seed, objective.tokens, heads
        )
    normalized = getattr(rule, "normalized", False)
    companions: list[Companion] = []
    if head_lr is not None:
        companions.append(JointTraining(objective, head_lr, normalized))
    embedding = None
    if embedding_lr is not None:
        if vocabulary is None or batch_size is not None or held_out is not None:
            raise ValueError(
                "embedding_lr is given; a vocabulary, and batch_size=None and held_out=None were expected."
            )
        embedding = EmbeddingTraining(objective, vocabulary, data.batch_shape, embedding_lr, normalized)
        companions.append(embedding)
    batches = None if batch_size is None else Batches(data.n, batch_size, replacement, entropy)
    engine = _engine(objective, rule, params, schedule, companions, batches, backend)
    marks = record_steps(record_every, int(steps))
    records, count, cancelled = run(engine, marks, int(steps), callback)
    W = records["K"] @ records["Q"].mT if parameterization == "KQ" else records["W"]

    def in_shape(tensor: Tensor) -> Array:
        tensor = tensor.reshape(*data.batch_shape, *tensor.shape[1:])
        return tensor.to(out) if is_tensor(data.tokens) else tensor.numpy().astype(out, copy=False)

    arrays = {name: in_shape(record) for name, record in records.items()}
    last = np.array([engine.ends[b].step if b in engine.ends else count[-1] for b in range(len(params[0]))])
    return Trace(
        data=data,
        step=count,
        W=in_shape(W),
        K=arrays.get("K"),
        Q=arrays.get("Q"),
        embeddings=arrays.get("embeddings"),
        head={name.removeprefix("head."): array for name, array in arrays.items() if name.startswith("head.")},
        optimizer=engine.label if isinstance(engine, ForeignEngine) else rule.name,
        numerics=numerics,
        backend=engine.name,
        stopped=cancelled,
        seconds=watch.seconds,
        flipped=wrong.reshape(data.labels.shape),
        last_step=last.reshape(data.batch_shape),
        notice=notice(engine.ends, len(last)),
        _objective=objective,
        _records=records | {"W": W},
        _evaluation=evaluation,
        _embedding=embedding,
    )
