r"""A probe that learns a head's selection from a few hundred queries, with its controls.

The probe is a W fitted to the tokens that a head attends to most on some sequences. It is fitted by the attention SVM,
with a soft margin that is nearly hard, or by logistic regression (softmax cross-entropy). The test compares its choice
with the token attended to most on other sequences. A context is the tokens that a query sees and its position among
them. One query per context is used, so a prefix shared by all texts, such as a chat template, is not in both halves.

The agreement is compared with controls: the best rule of place, which needs no fit (one offset, or one position in the
text), a probe of permuted selections, the Hebbian direction, and a guess. The probe of a rotary head sees distance and
content, so probes of content alone and of distance alone are added. The SVM's multipliers determine support tokens: the
rejected tokens with the smallest margins.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from scipy.optimize import minimize
from scipy.special import softmax

from attsvm.platform.summary import Worded
from attsvm.solvers.solving import solve
from attsvm.study.controls import PRICE, hebbian, shuffle
from attsvm_pretrained.heads.head import AttentionHead
from attsvm_pretrained.heads.sequences import by_sequence
from attsvm_pretrained.selection.inner_products import Factored, Kernel, TokenProducts, hebbian_scores
from attsvm_pretrained.selection.kernel import solve_selection
from attsvm_pretrained.selection.rope import position_features
from attsvm_pretrained.selection.selectivity import has_choice
from attsvm_pretrained.selection.support_tokens import SupportToken, support_tokens
from attsvm_pretrained.selection.thinning import choices, drawn_tokens, thin

Method = Literal["svm", "logistic"]
Scores = Callable[[AttentionHead], np.ndarray]
# Weight of half the squared norm in the mean cross-entropy, for tokens and queries of mean length one.
LOGISTIC_PENALTY = 1e-4
# Relative gap to which a probe is fitted.
FIT = 1e-3
# Number of rejected tokens of all training queries above which each query is fitted against randomly drawn tokens.
MOST_REJECTED = 8192
# Number of rejected tokens that are then drawn for all training queries together.
DRAWN_REJECTED = 4096
# Number of tokens up to which the inner products for a rotary head are stored (170 MB).
GRAM_TOKENS = 4608


@dataclass(frozen=True, eq=False, repr=False)
class SelectionProbe(Worded):
    """A probe and its controls.

    Attributes
    ----------
    method : {"svm", "logistic"}
    agreement : float
        Share of held-out queries whose token the probe finds.
    train_agreement : float
        Share of training queries whose token the probe finds.
    rule : float
        Held-out agreement of the best rule of place, chosen on the training queries.
    rule_name : str
    hebbian, shuffled, guess : float
        Held-out agreement of the Hebbian direction, of a probe of permuted selections, and of a blind guess.
    content, distance : float or None
        Held-out agreement of a probe without distances and of a probe with distances alone, for a rotary head.
    train, held_out : int
        Numbers of queries.
    repeated : int
        Number of queries omitted because another has the same context.
    among : int or None
        Number of tokens on which each training query was fitted: the token attended to most and others drawn at random.
        None for all visible tokens.
    support : tuple of SupportToken
        Tokens with the largest multipliers, in descending order; empty for the logistic probe.

    Examples
    --------
    >>> from attsvm import pretrained
    >>> head = pretrained.example_head()
    >>> probe = pretrained.fit_selection(head, method="logistic", queries=20)
    >>> probe.train > 0, probe.held_out > 0, probe.support
    (True, True, ())
    """

    method: Method
    agreement: float
    train_agreement: float
    rule: float
    rule_name: str
    hebbian: float
    shuffled: float
    guess: float
    content: float | None
    distance: float | None
    train: int
    held_out: int
    repeated: int
    among: int | None
    support: tuple[SupportToken, ...]

    @property
    def noise(self) -> float:
        """Two standard deviations of the difference of two shares of the held-out queries."""
        p = 0.5 * (self.agreement + self.rule)
        return 2.0 * float(np.sqrt(2.0 * max(p * (1 - p), 0.25 / self.held_out) / self.held_out))

    @property
    def better_than_rule(self) -> bool:
        """Whether the probe's agreement exceeds the agreement of every control by more than sampling noise."""
        controls = max(self.rule, self.shuffled, self.guess, 0.0 if self.distance is None else self.distance)
        return self.agreement > controls + self.noise

    @property
    def sentence(self) -> str:
        """State the result in one sentence."""
        share = f"{100 * self.agreement:.0f} % of {self.held_out}"
        finding = f"A probe fitted to {self.train} queries finds the token of {share} others"
        rule = f"{self.rule_name} finds {100 * self.rule:.0f} %"
        if self.content is not None and self.distance is not None:
            rule += f", a probe of content alone {100 * self.content:.0f} %, of distance {100 * self.distance:.0f} %"
        if self.better_than_rule:
            return f"{finding}; {rule}, a probe of permuted selections {100 * self.shuffled:.0f} %."
        return f"{finding}, no better than a rule that needs no fit: {rule}."


def fit_selection(
    head: AttentionHead,
    *,
    method: Method = "svm",
    queries: int = 200,
    held_out: float = 0.3,
    seed: int = 0,
    time_limit: float | None = 30.0,
) -> SelectionProbe:
    """Fit a probe to a head's selections and test it on other sequences.

    Parameters
    ----------
    head : AttentionHead
        A head with at least two sequences.
    method : {"svm", "logistic"}
        A rotary head needs "svm", which uses its kernel.
    queries : int
        Largest number of training queries, and of test queries, drawn at random. If the training queries see more than
        8192 tokens together, about 4096 tokens are drawn at random; each query is fitted on its drawn tokens and the
        token it attends to most. The test uses all visible tokens.
    held_out : float
        Share of the sequences reserved for the test.
    seed : int
    time_limit : float, optional
        Time limit of one SVM, in seconds.

    Returns
    -------
    SelectionProbe

    Raises
    ------
    ValueError
        If there is only one sequence, an option is out of range, or the method of a rotary head is "logistic".

    Examples
    --------
    >>> from attsvm import pretrained
    >>> head = pretrained.example_head()
    >>> probe = pretrained.fit_selection(head, queries=20)
    >>> probe.method, 0 <= probe.agreement <= 1
    ('svm', True)
    """
    if method not in ("svm", "logistic"):
        raise ValueError(f"method is {method!r}; 'svm' or 'logistic' was expected.")
    if method == "logistic" and head.rotary:
        raise ValueError("method is 'logistic'; 'svm' was expected for a rotary head, whose lifted W is not formed.")
    if not 0 < held_out < 1:
        raise ValueError(f"held_out is {held_out!r}; a number between 0 and 1 was expected.")
    rng = np.random.default_rng(seed)
    several = has_choice(head)
    rows = distinct_contexts(head, several)
    sequences = rng.permutation(np.unique(head.sequence[rows]))
    if len(sequences) < 2:
        raise ValueError(
            f"the head has queries of {len(sequences)} sequence; two or more were expected, one to test on."
        )
    test_sequences = sequences[: max(1, min(len(sequences) - 1, round(held_out * len(sequences))))]
    in_test = np.isin(head.sequence[rows], test_sequences)
    train_rows, test_rows = _draw(rows[~in_test], queries, rng), _draw(rows[in_test], queries, rng)
    train, test = head.take(train_rows), head.take(test_rows)
    rule_name, rule = _rule(train, test)
    permuted = shuffle(train.selected, train.mask, rng)
    fitted, columns = _fitted(train, train.selected if permuted is None else permuted, rng)
    targets = (columns == train.selected[:, None]).argmax(axis=1)
    fit = _logistic if method == "logistic" else _svm
    content = distance = None
    if head.rotary:
        content = _content(fitted)
        products = _products(content)
        by_content = _svm(content, targets, time_limit, products)[0]
        by_distance = _svm(_distance(fitted), targets, time_limit)[0]
        content = _agreement(by_content(_content(test)), test.selected)
        distance = _agreement(by_distance(_distance(test)), test.selected)
        if isinstance(products, TokenProducts) and head.bias is None:
            products.rotate(fitted)
        else:
            products = _products(fitted)
        fit = partial(_svm, products=products)
    W, dual = fit(fitted, targets, time_limit)
    control = np.nan
    if permuted is not None:
        shuffled, _ = fit(fitted, (columns == permuted[:, None]).argmax(axis=1), time_limit)
        control = _agreement(shuffled(test), test.selected)
    multipliers = None
    if dual is not None:
        multipliers = np.zeros(train.mask.shape)
        np.put_along_axis(multipliers, columns, dual[:, : columns.shape[1]], axis=1)
    return SelectionProbe(
        method=method,
        agreement=_agreement(W(test), test.selected),
        train_agreement=_agreement(W(train), train.selected),
        rule=rule,
        rule_name=rule_name,
        hebbian=_agreement(_hebbian(train, test), test.selected),
        shuffled=float(np.nan_to_num(control)),
        guess=float((1.0 / test.mask.sum(axis=1)).mean()),
        content=content,
        distance=distance,
        train=len(train_rows),
        held_out=len(test_rows),
        repeated=len(several) - len(rows),
        among=None if fitted is train else columns.shape[1],
        support=() if multipliers is None else support_tokens(head, train_rows, train, multipliers),
    )


def distinct_contexts(head: AttentionHead, rows: np.ndarray) -> np.ndarray:
    """Return one query of each context among some queries, ascending.

    A context is the position of a query and the tokens it sees. Contexts are compared by token ids, or by vectors if
    the head has no ids.
    """
    ids = head.ids
    if ids is None:
        size = float(np.abs(head.tokens).max()) or 1.0
        rounded = np.round(head.tokens / size, 3)
        ids = np.unique(rounded.reshape(-1, rounded.shape[2]), axis=0, return_inverse=True)[1].reshape(
            rounded.shape[:2]
        )
    contexts = {}
    for i in rows:
        j, mask = head.sequence[i], head.mask[i]
        place = head.text_place[j, head.position[i]] if head.self_attention else head.queries[i].tobytes()
        contexts.setdefault((place, ids[j, mask].tobytes(), head.text_place[j, mask].tobytes()), i)
    return np.array(sorted(contexts.values()))


def _content(head: AttentionHead) -> AttentionHead:
    """Remove the distances."""
    return replace(head, turns=None)


def _distance(head: AttentionHead) -> AttentionHead:
    """Remove the content: tokens become positional features of their distances, and all queries are equal."""
    return replace(
        head,
        tokens=position_features(head),
        queries=np.ones((len(head.queries), 1)),
        sequence=np.arange(len(head.queries)),
        text_place=head.text_place[head.sequence],
        turns=None,
        ids=None,
        texts=None,
        special=None,
    )


def _draw(rows: np.ndarray, most: int, rng: np.random.Generator) -> np.ndarray:
    return np.sort(rng.choice(rows, min(most, len(rows)), replace=False))


def _agreement(scores: np.ndarray, selected: np.ndarray) -> float:
    return float((scores.argmax(axis=1) == selected).mean())


def _fitted(train: AttentionHead, permuted: np.ndarray, rng: np.random.Generator) -> tuple[AttentionHead, np.ndarray]:
    """Draw tokens of the training queries if they see many; return the head and its columns, (n, count)."""
    among = choices(train.mask, MOST_REJECTED, DRAWN_REJECTED)
    if among is None:
        return train, np.broadcast_to(np.arange(train.mask.shape[1]), train.mask.shape)
    columns = drawn_tokens(train.mask, among, rng, certain=(train.selected, permuted))
    return thin(train, columns), columns


def _products(train: AttentionHead) -> Kernel:
    return TokenProducts(train, unweighted=False) if train.mask.sum() <= GRAM_TOKENS else Factored(train)


def _svm(
    train: AttentionHead, selected: np.ndarray, time_limit: float | None, products: Kernel | None = None
) -> tuple[Scores, np.ndarray]:
    """Fit the soft-margin SVM, from inner products if given; return a scoring function and the multipliers."""
    C = PRICE / _length(train, selected) ** 2
    if products is not None:
        fit = solve_selection(train, selected, products, C, FIT, time_limit)
        return fit.scores, fit.dual
    problem = train.problem(selected)
    solution = solve(problem, C=C, loss="squared_hinge", tol=FIT, time_limit=time_limit)
    return _bilinear(np.asarray(solution.W)), np.asarray(solution.dual)


def _logistic(train: AttentionHead, selected: np.ndarray, time_limit: float | None) -> tuple[Scores, None]:
    """Fit W by softmax cross-entropy; return a scoring function, and None for the multipliers."""
    problem = train.problem(selected)
    _, _, d, dz = problem.shape
    length, rows = _length(train, selected), np.arange(len(selected))
    one_hot = np.zeros(train.mask.shape, dtype=bool)
    one_hot[rows, selected] = True

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        W = flat.reshape(d, dz)
        margins = problem.apply(W / length)
        probability = softmax(np.where(train.mask, -margins, -np.inf), axis=1)
        value = -np.log(np.maximum(probability[rows, selected], np.finfo(float).tiny)).mean()
        gradient = -problem.adjoint(np.where(one_hot, 0.0, probability)) / (length * len(rows))
        return value + 0.5 * LOGISTIC_PENALTY * float(flat @ flat), gradient.ravel() + LOGISTIC_PENALTY * flat

    optimum = minimize(loss, np.zeros(d * dz), jac=True, method="L-BFGS-B", options={"maxiter": 300})
    return _bilinear(optimum.x.reshape(d, dz) / length), None


def _bilinear(W: np.ndarray) -> Scores:
    return lambda head: np.asarray(head.problem().scores(W))


def _hebbian(train: AttentionHead, test: AttentionHead) -> np.ndarray:
    """Held-out scores of the Hebbian direction."""
    if train.rotary:
        return hebbian_scores(train, test)
    return _bilinear(hebbian(train.problem()))(test)


def _length(head: AttentionHead, selected: np.ndarray) -> float:
    """Return the root mean square length of a constraint, |token difference| |query| (lifted for a rotary head)."""
    total, count = 0.0, 0
    size = np.square(head.queries).sum(axis=1)
    rho = position_features(head)
    weight = float(rho[0, 0] @ rho[0, 0])
    for j, rows in by_sequence(head.sequence):
        products = head.tokens[j] @ head.tokens[j].T
        lengths = np.diag(products)
        between = np.einsum("if,itf->it", rho[rows, selected[rows]], rho[rows]) * products[selected[rows]]
        squared = weight * (lengths[selected[rows]][:, None] + lengths) - 2.0 * between
        total += float((squared * head.mask[rows]).sum(axis=1) @ size[rows])
        count += int(head.mask[rows].sum()) - len(rows)
    return float(np.sqrt(total / max(count, 1)))


def _rule(train: AttentionHead, test: AttentionHead) -> tuple[str, float]:
    """Return the best rule of place on the training queries, and its held-out agreement."""
    winners, selected = train.selected_place, test.selected_place
    places, counts = np.unique(winners, return_counts=True)
    place = int(places[counts.argmax()])
    where = "the null token" if place < train.first_place else f"place {place - train.first_place} of the text"
    best, name, prediction = counts.max(), where, np.full(len(selected), place)
    if train.self_attention:
        offsets, counts = np.unique(winners - train.query_place, return_counts=True)
        if counts.max() > best:
            offset = int(offsets[counts.argmax()])
            best, name, prediction = counts.max(), f"offset {offset:+d} from the query", test.query_place + offset
    from_end, counts = np.unique(_last(train) - winners, return_counts=True)
    if counts.max() > best:
        back = int(from_end[counts.argmax()])
        name, prediction = f"place {back} before the end", _last(test) - back
    return name, float((prediction == selected).mean())


def _last(head: AttentionHead) -> np.ndarray:
    """Return the last position in the text that each query sees, (n,)."""
    return np.where(head.mask, head.text_place[head.sequence], -1).max(axis=1)
