"""Measure the effect of a head's attention on answers: replace its pattern in the model, and measure the answers again.

There are four replacements. *uniform* is uniform attention: it keeps the values and drops the selection. *svm* is the
max-margin selector of the tokens that the head selects, at the norm of its W: it keeps the selection and drops the rest
of W. *rule* is uniform attention on the tokens of the rule that names the head: it keeps only the rule. *removed* drops
the output. The null consists of heads with rotated weights in the head's place. An effect within the null is no
evidence that the head has learnt something.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attsvm.platform.extras import frame
from attsvm.platform.summary import Worded, counted
from attsvm_pretrained.activations.interface import attending_by, eager_attention, evaluating, patched
from attsvm_pretrained.heads.extract import extract_head, inner_model
from attsvm_pretrained.heads.head import AttentionHead
from attsvm_pretrained.heads.inputs import on_device, tokenize
from attsvm_pretrained.selection.audit import sampled
from attsvm_pretrained.selection.null import Standing, redrawn
from attsvm_pretrained.selection.rules import Rules
from attsvm_pretrained.selection.span import span
from attsvm_pretrained.selection.types import HeadTypes, head_types, named_tokens

# Label of a position whose logit is not measured, as in the losses of transformers.
NO_ANSWER = -100


@dataclass(frozen=True, eq=False, repr=False)
class HeadEffects(Worded):
    """Answers of a model with a head's attention replaced.

    Attributes
    ----------
    layer, head : int
    types : HeadTypes
        The types of the head on these inputs.
    measure : {"log-probability", "logit difference"}
    before : ndarray, shape (m,)
        The measure of every answer in the unchanged model.
    changes : dict of str to ndarray, shape (m,)
        Change of the measure under "uniform", "svm", "rule" (if a rule names the head) and "removed".
    null : dict of str to ndarray, shape (draws, m)
        Change of the measure under "rotated" and "permuted" weights.

    Examples
    --------
    >>> import torch
    >>> from attsvm import pretrained
    >>> model, inputs = pretrained.example_model("gpt2")
    >>> effects = pretrained.head_effects(model, 1, 0, inputs, answers=torch.tensor([9]), draws=4)
    >>> sorted(effects.changes), effects.null["rotated"].shape
    (['removed', 'svm', 'uniform'], (2, 1))
    """

    layer: int
    head: int
    types: HeadTypes
    measure: str
    before: np.ndarray
    changes: dict[str, np.ndarray]
    null: dict[str, np.ndarray]

    def standing(self, name: str) -> Standing:
        """Compare the mean loss of the measure under a replacement with the loss under re-drawn weights.

        Parameters
        ----------
        name : str
            Key of `changes`.

        Examples
        --------
        >>> import torch
        >>> from attsvm import pretrained
        >>> model, inputs = pretrained.example_model("gpt2")
        >>> effects = pretrained.head_effects(model, 1, 0, inputs, answers=torch.tensor([9]), draws=4)
        >>> effects.standing("uniform").draws.shape
        (2,)
        """
        means = {kind: -draws.mean(axis=1) for kind, draws in self.null.items()}
        return Standing(-float(self.changes[name].mean()), means["rotated"], means["permuted"])

    @property
    def sentence(self) -> str:
        """State the mean changes next to the range of the null."""
        words = {
            "uniform": "uniform attention",
            "svm": "its own SVM",
            "rule": f"its rule ({self.types.label})",
            "removed": "no output",
        }
        changes = ", ".join(f"{words[name]} {values.mean():+.3g}" for name, values in self.changes.items())
        null = self.null["rotated"].mean(axis=1)
        return (
            f"Head {self.layer}.{self.head}: the {self.measure} of {counted(len(self.before), 'answer')}, "
            f"{self.before.mean():.3g} on average, changes with {changes}; "
            f"{counted(len(null), 'head')} with rotated weights in its place: {null.min():+.3g} to {null.max():+.3g}."
        )

    def to_frame(self) -> Any:
        """List replacements and draws.

        Returns
        -------
        pandas.DataFrame
            Columns replacement, mean and largest (the change of the answer that changes most).

        Raises
        ------
        ImportError
            Without pandas.

        Examples
        --------
        >>> import torch
        >>> from attsvm import pretrained
        >>> model, inputs = pretrained.example_model("gpt2")
        >>> effects = pretrained.head_effects(model, 1, 0, inputs, answers=torch.tensor([9]), draws=4)
        >>> list(effects.to_frame()["replacement"])[:3]
        ['uniform', 'svm', 'removed']
        """
        rows = [*self.changes.items()]
        rows += [(f"{kind} weights", draw) for kind, draws in self.null.items() for draw in draws]
        names, values = zip(*rows, strict=True)
        columns = {
            "replacement": list(names),
            "mean": [float(one.mean()) for one in values],
            "largest": [float(one[np.abs(one).argmax()]) for one in values],
        }
        return frame("HeadEffects.to_frame", columns)


def head_effects(
    model: Any,
    layer: int | str,
    head: int,
    inputs: Mapping[str, Any] | Sequence[str],
    *,
    answers: Any,
    rivals: Any = None,
    tokenizer: Any = None,
    rules: Rules | None = None,
    draws: int = 20,
    queries: int = 64,
    seed: int = 0,
    time_limit: float | None = 10.0,
) -> HeadEffects:
    """Measure the effect of a head's attention on answers, in the model.

    Parameters
    ----------
    model : PreTrainedModel
        With a language-model head and transformers' attention interface. It does not change.
    layer, head
        As for :func:`attsvm.pretrained.extract_head`.
    inputs : mapping or sequence of str
        Keyword arguments of the model, or texts, which need `tokenizer`.
    answers : array of int, shape (b,) or (b, T)
        Token ids of the answer after each text, or of an answer at each position, with -100 for no answer.
    rivals : array of int, of the same shape, optional
        Other token ids. The measure is the answer's logit minus the rival's; without rivals it is the log-probability
        of the answer.
    tokenizer : PreTrainedTokenizerBase, optional
    rules : mapping of str to rule, optional
        Other types, as for :func:`attsvm.pretrained.head_types`.
    draws : int
        Number of heads with re-drawn weights, alternately rotated and permuted; each needs a forward pass.
    queries : int
        Number of queries of the SVM, as for :func:`attsvm.pretrained.margin_audit`.
    seed : int
    time_limit : float, optional
        Time limit of the SVM, in seconds.

    Returns
    -------
    HeadEffects

    Raises
    ------
    ValueError
        If the head cannot be extracted, answers do not fit the texts, or the model computes attention by itself.

    Examples
    --------
    >>> import torch
    >>> from attsvm import pretrained
    >>> model, inputs = pretrained.example_model("gpt2")
    >>> effects = pretrained.head_effects(model, 1, 0, inputs, answers=torch.tensor([9]), draws=4)
    >>> effects.measure, effects.before.shape
    ('log-probability', (1,))
    """
    if draws < 2:
        raise ValueError(f"draws is {draws}; at least 2 were expected.")
    model = inner_model(model)
    batch = on_device(tokenize(inputs, tokenizer), model)
    extracted = extract_head(model, layer, head, batch, tokenizer=tokenizer)
    types = head_types(extracted, draws=draws, seed=seed, rules=rules)
    rng = np.random.default_rng((seed, 4))
    with evaluating(model), torch.no_grad():
        with attending_by(model, eager_attention):
            logits = _logits(model, batch)
        ask = _Ask(extracted, answers, rivals, logits)
        before = ask.measure(logits)

        def change(pattern: np.ndarray | None) -> np.ndarray:
            full = None if pattern is None else extracted.pattern(pattern, length=ask.length)
            with patched(model, extracted.name, extracted.head, None if full is None else torch.from_numpy(full)):
                return ask.measure(_logits(model, batch)) - before

        changes = {
            name: change(pattern) for name, pattern in _patterns(extracted, types, rules, queries, rng, time_limit)
        }
        null: dict[str, list[np.ndarray]] = {"rotated": [], "permuted": []}
        for kind, fresh in redrawn(extracted, draws, rng):
            null[kind].append(change(fresh.probabilities))
    measured = "log-probability" if rivals is None else "logit difference"
    drawn = {kind: np.array(values) for kind, values in null.items()}
    return HeadEffects(extracted.layer, extracted.head, types, measured, before, changes, drawn)


def _patterns(
    head: AttentionHead, types: HeadTypes, rules: Rules | None, queries: int, rng: np.random.Generator,
    time_limit: float | None,
) -> Iterator[tuple[str, np.ndarray | None]]:  # fmt: skip
    """Yield the replacements of a head's attention, (n, T) each."""
    yield "uniform", head.mask / head.mask.sum(axis=1, keepdims=True)
    sample = sampled(head, queries, rng)[2]
    yield "svm", head.attention(span(sample).svm_scores(head, time_limit))
    tokens = named_tokens(head, types, rules)
    if tokens is not None:  # queries without a token of the rule keep their attention
        count = tokens.sum(axis=1, keepdims=True)
        yield "rule", np.where(count > 0, tokens / np.maximum(count, 1), head.probabilities)
    yield "removed", None


def _logits(model: Any, batch: Mapping[str, Any]) -> torch.Tensor:
    output = model(**batch)
    logits = output if isinstance(output, torch.Tensor) else getattr(output, "logits", None)
    if logits is None or logits.ndim != 3:
        raise ValueError(
            f"{type(model).__name__} returns no logits by place; a model with a language-model head was expected."
        )
    return logits.double()


class _Ask:
    """The answers whose logits are measured, by row of the logits."""

    def __init__(self, head: AttentionHead, answers: Any, rivals: Any, logits: torch.Tensor) -> None:
        self.length = logits.shape[1]
        ids = np.asarray(answers)
        texts = len(head.tokens)
        if ids.dtype.kind not in "iu" or ids.shape not in ((texts,), (texts, self.length)):
            raise ValueError(
                f"answers has {ids.dtype} of shape {ids.shape}; integers ({texts},) or ({texts}, {self.length}) were "
                "expected."
            )
        others = None if rivals is None else np.asarray(rivals)
        if others is not None and (others.shape != ids.shape or others.dtype.kind not in "iu"):
            raise ValueError(f"rivals has {others.dtype} of shape {others.shape}; integers {ids.shape} were expected.")
        if ids.ndim == 1:  # after the last token of each text
            last = np.array([head.position[head.sequence == j].max() for j in range(texts)])
            self._at = np.arange(texts), last
            self._answers, self._rivals = ids, others
        else:
            self._at = np.nonzero(ids != NO_ANSWER)
            self._answers, self._rivals = ids[self._at], None if others is None else others[self._at]
        if not len(self._answers):
            raise ValueError(f"answers are all {NO_ANSWER}; one token id or more was expected.")
        for name, tokens in (("answers", self._answers), ("rivals", self._rivals)):
            if tokens is not None and not (tokens.min() >= 0 and tokens.max() < logits.shape[2]):
                raise ValueError(
                    f"{name} range from {tokens.min()} to {tokens.max()}; token ids from 0 to {logits.shape[2] - 1} "
                    "were expected."
                )

    def measure(self, logits: torch.Tensor) -> np.ndarray:
        rows = logits[self._at]  # (m, V)
        each = torch.arange(len(rows)), torch.from_numpy(self._answers)
        if self._rivals is None:
            values = rows.log_softmax(dim=1)[each]
        else:
            values = rows[each] - rows[each[0], torch.from_numpy(self._rivals)]
        return values.cpu().numpy()
