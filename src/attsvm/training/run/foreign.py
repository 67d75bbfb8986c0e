r"""Train with any torch.optim.Optimizer, which gets the exact gradient.

Each trial has a separate optimiser, created by the caller's factory. A coupling of parameters, such as a global norm or
a line search, therefore stays within one trial. The optimiser receives the true gradient, :math:`e^c G / n`, in the
dtype of the computation. Its arithmetic may lose this gradient early: Adam squares it, and float32 squares underflow
for :math:`|g| < 10^{-22.6}`, at a margin near 52. The trial then ends, and the trace has the reason.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from attsvm.training.optimisers.schedule import Schedule, step_sizes
from attsvm.training.risk.objective import Gradient, Objective
from attsvm.training.run.batches import Batches
from attsvm.training.run.joint import Companion
from attsvm.training.run.limits import Ending, left_range, out_of_range

Factory = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def _make(factory: Factory, params: Iterable[Tensor]) -> torch.optim.Optimizer:
    optimizer = factory([torch.nn.Parameter(param) for param in params])
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"optimizer returned {type(optimizer).__name__}; a torch.optim.Optimizer was expected.")
    return optimizer


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _wants_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether step() needs a function that evaluates the risk, as L-BFGS does."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def keeps_squares(factory: Factory, params: list[Tensor]) -> bool:
    """Tell whether the optimiser's state is quadratic in the gradient, from first steps with g and 2 g."""
    memories = []
    for size in (1.0, 2.0):
        optimizer = _make(factory, [param.new_ones(3, 3) for param in params])
        if _wants_closure(optimizer):
            return False
        for param in _parameters_of(optimizer):
            param.grad = torch.full_like(param, size)
        optimizer.step()
        memories.append([value for state in optimizer.state.values() for value in state.values()])
    pairs = [pair for pair in zip(*memories, strict=True) if all(map(_is_floating, pair))]
    return any(bool((one > 0).all()) and torch.allclose(two, 4 * one) for one, two in pairs)


def _is_floating(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


class ForeignEngine:
    """One torch optimiser per trial.

    Parameters
    ----------
    factory : callable
        ``factory(params) -> torch.optim.Optimizer`` for a list of matrices, [W] or [K, Q].
    params : list of tensors, shape (B, ...)
        Updated in place.
    schedule : str, callable or None
        Factor of the optimiser's learning rates.

    Raises
    ------
    ValueError
        If the factory returns another type, or an optimiser that needs a closure is used with mini-batches.
    """

    name = "torch"
    companions: Sequence[Companion] = ()

    def __init__(
        self,
        objective: Objective,
        factory: Factory,
        params: list[Tensor],
        schedule: Schedule | None = None,
        batches: Batches | None = None,
    ) -> None:
        self.objective, self.params, self.batches = objective, params, batches
        self.schedule: Schedule = "constant" if schedule is None else schedule
        trials = range(len(params[0]))
        self.optimizers = [_make(factory, [param[b].clone() for param in params]) for b in trials]
        self.trained = [_parameters_of(optimizer) for optimizer in self.optimizers]
        for copies in self.trained:
            if [tuple(p.shape) for p in copies] != [tuple(p.shape[1:]) for p in params]:
                raise ValueError(
                    f"optimizer trains {len(copies)} parameters; the {len(params)} given to it were expected, in order."
                )
        self.rates = [[group.get("lr", 1.0) for group in optimizer.param_groups] for optimizer in self.optimizers]
        self.label = type(self.optimizers[0]).__name__
        self.closure = _wants_closure(self.optimizers[0])
        if self.closure and batches is not None:
            raise ValueError(
                f"batch_size is {batches.size}; None was expected for {self.label}, which steps by a closure."
            )
        self.squares = keeps_squares(factory, [param[0] for param in params])
        self.ends: dict[int, Ending] = {}

    def save(self) -> None:
        """Nothing to save: a trial that leaves the range is stopped at once."""

    def restore(self, state: None) -> None:
        """Nothing was saved."""

    def failures(self) -> dict[int, str]:
        """Return nothing: a failed step ends its trial at once."""
        return {}

    def advance(self, first: int, count: int) -> None:
        """Make steps first + 1 .. first + count of every trial that has not ended."""
        for step, factor in enumerate(step_sizes(1.0, self.schedule, first, count).tolist(), first):
            active = [b for b in range(len(self.optimizers)) if b not in self.ends]
            if not active:
                return
            objective = self.objective if self.batches is None else self.objective.rows(self.batches.at(step))
            grads, scaled = objective.gradients(self.params)
            for b in active:
                for group, rate in zip(self.optimizers[b].param_groups, self.rates[b], strict=True):
                    group["lr"] = rate * factor
                reason = self._step(objective, b, [grad[b] for grad in grads], scaled)
                if reason:
                    self.ends[b] = Ending(step, reason)

    def _step(self, objective: Objective, b: int, grads: list[Tensor], scaled: Gradient) -> str:
        """Make one step of one trial; return the reason if it failed, otherwise an empty text."""
        scale = scaled.log_mean[b].exp()
        mantissa = max(float(grad.abs().max()) for grad in grads)
        largest = float(scale) * mantissa
        dtype = str(grads[0].dtype).removeprefix("torch.")
        if mantissa > 0 and largest == 0:
            return f"the gradient underflows in {dtype}"
        if self.squares and mantissa > 0 and not float(torch.tensor(largest, dtype=grads[0].dtype).square()) > 0:
            return f"the squared gradient that {self.label} keeps underflows in {dtype}"
        trained = self.trained[b]
        for param, grad in zip(trained, grads, strict=True):
            param.grad = grad * scale
        if self.closure:
            self.optimizers[b].step(lambda: self._evaluate(objective, b))
        else:
            self.optimizers[b].step()
        if bool(out_of_range([param.detach().unsqueeze(0) for param in trained])):
            return left_range(grads[0].dtype)
        moving = any(group["lr"] > 0 for group in self.optimizers[b].param_groups)
        if (
            moving
            and mantissa > 0
            and all(torch.equal(new, old[b]) for new, old in zip(trained, self.params, strict=True))
        ):
            return f"the steps of {self.label} no longer change the parameters in {dtype}"
        for param, new in zip(self.params, trained, strict=True):
            param[b] = new.detach()
        return ""

    def _evaluate(self, objective: Objective, b: int) -> float:
        """Give a trial's optimiser the gradient at its current parameters, and return the risk there."""
        one = objective.trial(b)
        now = [param.detach().unsqueeze(0) for param in self.trained[b]]
        grads, scaled = one.gradients(now)
        for param, grad in zip(self.trained[b], grads, strict=True):
            param.grad = grad[0] * scaled.log_mean.exp()
        W = now[0] if len(now) == 1 else now[0] @ now[1].mT
        return float(one.value(W))
