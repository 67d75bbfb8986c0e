"""Two ways to run the same steps: batched tensor operations, or a compiled loop over trials."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from attsvm.training.optimisers.descent import Optimizer
from attsvm.training.optimisers.schedule import step_sizes
from attsvm.training.optimisers.steepest import MirrorDescent
from attsvm.training.risk.objective import Objective
from attsvm.training.run.batches import Batches
from attsvm.training.run.joint import Companion
from attsvm.training.run.limits import Ending


class Engine(Protocol):
    """Runs steps, and updates the parameters.

    Attributes
    ----------
    params : list of tensors, shape (B, ...)
    companions : sequence of Companion
        Parameters trained in addition to attention.
    ends : dict
        The trials that ended early.
    """

    name: str
    params: list[Tensor]
    companions: Sequence[Companion]
    ends: dict[int, Ending]

    def save(self) -> Any:
        """Return the state that :meth:`restore` needs."""
        ...

    def restore(self, state: Any) -> None:
        """Return to a saved state."""
        ...

    def advance(self, first: int, count: int) -> None:
        """Make steps first + 1 .. first + count."""
        ...

    def failures(self) -> dict[int, str]:
        """Return the reason for each trial whose step failed, except parameters out of range."""
        ...


class TorchEngine:
    """All trials advance together, one tensor operation at a time."""

    name = "torch"

    def __init__(
        self,
        objective: Objective,
        rule: Optimizer,
        params: list[Tensor],
        companions: Sequence[Companion] = (),
        batches: Batches | None = None,
    ) -> None:
        self.objective, self.rule, self.params, self.batches = objective, rule, params, batches
        self.companions = companions
        self.state = rule.start(params, objective)
        self.ends: dict[int, Ending] = {}

    def save(self) -> Any:
        """Copy all trained parameters and the state of the rule, but not the data that the rule may refer to."""
        of_companions = [p.clone() for one in self.companions for p in one.parameters().values()]
        state = copy.deepcopy(self.state, {id(self.objective): self.objective})
        return [param.clone() for param in self.params], state, of_companions

    def restore(self, state: Any) -> None:
        """Return to a saved state."""
        params, self.state, of_companions = state
        now = [*self.params, *(p for one in self.companions for p in one.parameters().values())]
        for param, value in zip(now, [*params, *of_companions], strict=True):
            param.copy_(value)
        for one in self.companions:
            one.refresh()

    def failures(self) -> dict[int, str]:
        """Return the rule's reason for each trial whose step failed."""
        return self.rule.failures(self.state)

    @torch.no_grad()
    def advance(self, first: int, count: int) -> None:
        """Make steps first + 1 .. first + count."""
        sizes = step_sizes(self.rule.lr, self.rule.schedule, first, count).tolist()
        for step, size in enumerate(sizes, first):
            objective = self.objective if self.batches is None else self.objective.rows(self.batches.at(step))
            grads, scaled = objective.gradients(self.params)
            companion_steps = [one.steps(objective, self.params) for one in self.companions]
            if self.rule.weight_decay:
                for param in self.params:
                    param.mul_(1 - size * self.rule.weight_decay)
            self.rule.step(self.params, grads, scaled, self.state, step, size)
            for one, moves in zip(self.companions, companion_steps, strict=True):
                one.apply(moves)


# Number of token entries per trial above which torch is faster than the compiled loop.
_SMALL_TRIAL = 1 << 22


def can_compile(objective: Objective, rule: Optimizer, params: list[Tensor]) -> str | None:
    """Return the obstacle to the compiled loop; None if it can run this training."""
    from attsvm.training.run.compiled import KQ_RULES, LOSS_CODES, W_RULES

    tokens = objective.tokens
    if objective.weights is not None:
        return "sample weights"
    if rule.weight_decay:
        return "weight decay"
    if objective.gamma is None:
        return "nonlinear heads"
    if params[0].ndim == 4:
        return "several attention heads"
    if objective.numerics != "exact":
        return "autograd numerics"
    if objective.loss.name not in LOSS_CODES:
        return f"the loss {objective.loss.name!r}"
    if rule.name not in (W_RULES if len(params) == 1 else KQ_RULES):
        return f"the optimizer {rule.name!r}"
    if rule.relative and len(params) == 1:
        return "relative steps on W"
    if tokens.dtype != torch.float64 or tokens.device.type != "cpu":
        return f"{tokens.dtype} on {tokens.device.type}"
    if tokens[0].numel() > _SMALL_TRIAL:
        return f"trials of {tokens[0].numel()} token entries"
    return None


class CompiledEngine:
    """One trial after the other in compiled code; parameters are updated in place."""

    name = "compiled"
    companions: Sequence[Companion] = ()

    def __init__(self, objective: Objective, rule: Optimizer, params: list[Tensor]) -> None:
        from attsvm.training.run import compiled

        self.compiled, self.rule = compiled, rule
        self.ends: dict[int, Ending] = {}
        self.params = [param.contiguous() for param in params]
        shape = tuple(objective.tokens.shape[:-1])
        gamma = objective.gamma
        assert gamma is not None
        mask = np.ones(shape, dtype=bool) if objective.hidden is None else ~objective.hidden.numpy()
        self.problem = (
            np.ascontiguousarray(objective.tokens.numpy()),
            np.ascontiguousarray(objective.tokens.mT.numpy()),
            np.ascontiguousarray(objective.queries.numpy()),
            np.ascontiguousarray(objective.queries.mT.numpy()),
            np.ascontiguousarray(gamma.numpy()),
            np.ascontiguousarray(mask),
            compiled.LOSS_CODES[objective.loss.name],
            (compiled.W_RULES if len(params) == 1 else compiled.KQ_RULES)[rule.name],
        )
        self.power = rule.p if isinstance(rule, MirrorDescent) else 2.0
        start = rule.start(self.params, objective)
        self.state = start["mirror"].numpy() if "mirror" in start else np.zeros(tuple(self.params[0].shape))

    def save(self) -> Any:
        """Copy the parameters and the state of the rule."""
        return [param.clone() for param in self.params], self.state.copy()

    def restore(self, state: Any) -> None:
        """Return to a saved state."""
        params, self.state[:] = state
        for param, value in zip(self.params, params, strict=True):
            param.copy_(value)

    def failures(self) -> dict[int, str]:
        """Return nothing: compiled steps cannot fail."""
        return {}

    def advance(self, first: int, count: int) -> None:
        """Make steps first + 1 .. first + count, with the trials divided among torch's number of threads."""
        sizes = step_sizes(self.rule.lr, self.rule.schedule, first, count)
        arrays = [param.numpy() for param in self.params]
        trials = len(arrays[0])
        workers = min(torch.get_num_threads(), trials)
        ends = np.linspace(0, trials, workers + 1).astype(int).tolist()

        def run(part: slice) -> None:
            problem = (*(array[part] for array in self.problem[:6]), *self.problem[6:])
            matrices = [array[part] for array in arrays]
            if len(matrices) == 1:
                self.compiled.advance_W(*problem, sizes, first, self.power, matrices[0], self.state[part])
            else:
                self.compiled.advance_KQ(*problem, self.rule.relative, sizes, *matrices)

        parts = [slice(*pair) for pair in pairwise(ends)]
        if workers == 1:
            run(parts[0])
            return
        # The compiled loops release Python's lock.
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(run, parts))
