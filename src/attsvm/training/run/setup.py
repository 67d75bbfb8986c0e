"""Make the objects that training needs before its first step from the arguments of :func:`attsvm.train`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.core.types import Array
from attsvm.data.token_data import TokenData
from attsvm.platform.interop import is_tensor, to_numpy
from attsvm.training.optimisers.descent import Optimizer
from attsvm.training.optimisers.registry import make_optimizer
from attsvm.training.optimisers.schedule import Schedule
from attsvm.training.risk.embeddings import EmbeddingTraining, Vocabulary
from attsvm.training.risk.objective import Objective
from attsvm.training.run.batches import Batches, flips
from attsvm.training.run.engine import CompiledEngine, Engine, TorchEngine, can_compile
from attsvm.training.run.foreign import Factory, ForeignEngine
from attsvm.training.run.initial import aligned_factors, initial_parameters
from attsvm.training.run.joint import Companion, JointTraining
from attsvm.training.run.limits import notice
from attsvm.training.run.trace import Trace


@dataclass(frozen=True, eq=False)
class TrainingSetup:
    """Risk, rule and start of every trial.

    Attributes
    ----------
    data : TokenData
        Includes the labels used for training.
    flipped : ndarray of bool, shape (B, n)
        Labels that noise flipped.
    dtype : dtype
        Dtype of the results, in the data's array type.
    evaluation : Objective or None
        The risk on held-out data.
    rule : Optimizer or callable
    params : list of Tensor
        [W] of shape (B, d, dz), or [K, Q].
    companions : list of Companion
        Parameters trained in addition to attention: of the head, of the embeddings.
    """

    data: TokenData
    flipped: np.ndarray
    dtype: Any
    objective: Objective
    evaluation: Objective | None
    rule: Any
    params: list[Tensor]
    companions: list[Companion]
    batches: Batches | None

    def engine(self, schedule: Schedule | None, backend: str) -> Engine:
        """Choose the engine that runs the steps."""
        objective, rule, params = self.objective, self.rule, self.params
        if not isinstance(rule, Optimizer):
            if self.companions or backend == "compiled":
                raise ValueError(
                    "optimizer is a factory of torch optimisers; head_lr=None, embedding_lr=None and the torch backend "
                    "were expected."
                )
            return ForeignEngine(objective, rule, params, schedule, self.batches)
        extra = "training more than attention" if self.companions else "mini-batches" if self.batches else None
        obstacle = extra or can_compile(objective, rule, params)
        if backend == "compiled" and obstacle:
            raise ValueError(
                f"backend is 'compiled', but the compiled loop does not do {obstacle}; 'torch' or 'auto' was expected."
            )
        if backend == "torch" or obstacle:
            return TorchEngine(objective, rule, params, self.companions, self.batches)
        return CompiledEngine(objective, rule, params)

    def trace(
        self, engine: Engine, records: dict[str, Tensor], count: np.ndarray, *, cancelled: bool, seconds: float
    ) -> Trace:
        """Collect the records of an engine, (B, R, ...) each, after the steps ``count`` (R,)."""
        W = records["W"] if "W" in records else records["K"] @ records["Q"].mT
        arrays = {name: self._in_shape(record) for name, record in records.items()}
        trials = range(len(self.params[0]))
        last = np.array([engine.ends[b].step if b in engine.ends else count[-1] for b in trials])
        embeddings = [companion for companion in self.companions if isinstance(companion, EmbeddingTraining)]
        return Trace(
            data=self.data,
            step=count,
            W=self._in_shape(W),
            K=arrays.get("K"),
            Q=arrays.get("Q"),
            embeddings=arrays.get("embeddings"),
            head={name.removeprefix("head."): array for name, array in arrays.items() if name.startswith("head.")},
            optimizer=engine.label if isinstance(engine, ForeignEngine) else self.rule.name,
            numerics=self.objective.numerics,
            backend=engine.name,
            stopped=cancelled,
            seconds=seconds,
            flipped=self.flipped.reshape(self.data.labels.shape),
            last_step=last.reshape(self.data.batch_shape),
            notice=notice(engine.ends, len(last)),
            _objective=self.objective,
            _records=records | {"W": W},
            _evaluation=self.evaluation,
            _embedding=embeddings[0] if embeddings else None,
        )

    def _in_shape(self, tensor: Tensor) -> Array:
        """Return records (B, R, ...) in the data's leading dimensions, dtype and array type."""
        tensor = tensor.reshape(*self.data.batch_shape, *tensor.shape[1:])
        return tensor.to(self.dtype) if is_tensor(self.data.tokens) else tensor.numpy().astype(self.dtype, copy=False)


def working_dtype(dtype: Any, data: TokenData) -> tuple[torch.dtype, Any]:
    """Return the dtype of computation and the dtype (in the data's array type) of results."""
    if dtype is None:
        return torch.float64, data.tokens.dtype
    name = str(dtype).removeprefix("torch.") if isinstance(dtype, (str, torch.dtype)) else np.dtype(dtype).name
    if name not in ("float64", "float32"):
        raise ValueError(f"dtype is {dtype!r}; float64 or float32 was expected.")
    work = getattr(torch, name)
    return work, work if is_tensor(data.tokens) else np.dtype(name)


def with_noise(data: TokenData, probability: float, entropy: list[tuple[int, ...]]) -> tuple[TokenData, np.ndarray]:
    """Flip labels with the given probability; return the data and which labels were flipped, (B, n)."""
    wrong = flips(data.n, probability, entropy)
    if not wrong.any():
        return data, wrong
    signs = np.where(wrong.reshape(data.labels.shape), -1.0, 1.0)
    labels = data.labels * (torch.as_tensor(signs).to(data.labels) if is_tensor(data.labels) else signs)
    values = None if data.values is data.tokens else data.values
    return TokenData(data.tokens, data.queries, labels, data.mask, values), wrong


def rule_of(
    optimizer: str | Optimizer | Factory,
    parameterization: str,
    lr: float | None,
    schedule: Schedule | None,
    weight_decay: float | None,
) -> Optimizer | Factory:
    """Make the optimiser with its step size; a factory of torch optimisers is returned unchanged."""
    if isinstance(optimizer, (str, Optimizer)) or not callable(optimizer):
        return make_optimizer(optimizer, parameterization, lr, schedule, weight_decay)
    if lr is not None or weight_decay is not None:
        raise ValueError(
            "lr or weight_decay is given with a factory of torch optimisers; they were expected in the factory."
        )
    return optimizer


def weighted(objective: Objective, data: TokenData, sample_weight: Any) -> Objective:
    """Weight the queries of the risk, (n,) or one row per trial."""
    if sample_weight is None:
        return objective
    weights = torch.as_tensor(to_numpy("sample_weight", sample_weight))
    batched = tuple(weights.shape) == tuple(data.labels.shape)
    return objective.weighted(weights.reshape(-1, data.n) if batched else weights)


def start_of(
    init: Any, parameterization: str, rank: int | None, data: TokenData, seed: Any, objective: Objective, heads: int
) -> list[Tensor]:
    """Make the first parameters of every trial: [W] or [K, Q]."""
    if isinstance(init, str) and init == "aligned":
        return aligned_factors(objective, parameterization, rank)
    return initial_parameters(
        init, parameterization, rank, data.batch_shape, data.d, data.dz, seed, objective.tokens, heads
    )


def companions_of(
    objective: Objective,
    data: TokenData,
    head_lr: float | None,
    vocabulary: Vocabulary | None,
    embedding_lr: float | None,
    *,
    normalized: bool,
    alone: bool,
) -> list[Companion]:
    """Make the other trained parameters; ``alone`` tells that there are no mini-batches and no held-out data."""
    companions: list[Companion] = []
    if head_lr is not None:
        companions.append(JointTraining(objective, head_lr, normalized))
    if embedding_lr is not None:
        if vocabulary is None or not alone:
            raise ValueError(
                "embedding_lr is given; a vocabulary, and batch_size=None and held_out=None were expected."
            )
        companions.append(EmbeddingTraining(objective, vocabulary, data.batch_shape, embedding_lr, normalized))
    return companions
