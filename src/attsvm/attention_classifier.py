"""A classifier of bags that selects one instance per bag, as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.model_selection import StratifiedKFold
from sklearn.utils import Tags, check_random_state, column_or_1d
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from attsvm.core.types import AnyNorm
from attsvm.data.bags import Bags, is_bags, read_bags, table_bags
from attsvm.study.bag_training import BagModel, BagSelection, calibrated, leads, select, train_bags, with_svm
from attsvm.study.bag_words import guarantee


class AttentionClassifier(ClassifierMixin, TransformerMixin, BaseEstimator):
    """Classify bags of instances by the instance that attention selects, with a certificate of the selection.

    Instances are standardised. One attention matrix W under a constant query is trained together with a logistic head,
    under weight decay. Inner folds choose the decay and the number of rounds by their loss, and calibrate the
    probabilities. The attention SVM of the selected instances is then solved: it shows the largest margin that any
    W gives this selection, or which bags contradict each other. More than two classes are separated one against the
    rest.

    Bags are a list of arrays (instances, features), an array (bags, instances, features) with a ``mask``, or a table
    with a column that names the ``bag`` of each row. A matrix is read as bags of one instance each.

    Parameters
    ----------
    decay : float or sequence of float
        Weight of half the squared length of W and of the head. Inner folds choose from several.
    steps : int
        Largest number of training steps. Inner folds choose among 10, 20, 40, ... steps.
    final : {"attention", "svm"}
        Predict with the trained attention, or with the certified W and all attention on its selection.
    norm : str, float or Norm
        Norm of the certified W, as for :func:`attsvm.solve`.
    C : float or None
        Weight of the losses in the soft margin that replaces the hard margin if no W selects all instances. None:
        1 / (decay n), as in the training.
    cv : int or None
        Number of inner folds. None takes the first decay and all steps, and leaves probabilities uncalibrated.
    class_weight : dict, "balanced" or None
        Weights of classes in the loss, as in scikit-learn.
    bag : object
        Name of the column of tables that names the bag of each row.
    time_limit : float, optional
        In seconds, for each attention SVM.
    random_state : int, RandomState or None
        Random state of the inner folds.

    Attributes
    ----------
    classes_ : ndarray, shape (k,)
    n_features_in_ : int
    models_ : tuple of BagModel
        Attention and head: one for two classes, else one per class.
    selections_ : tuple of BagSelection
        The selected instances of the training bags and their SVM, in the same order.
    selected_ : ndarray of int, shape (n,), or (k, n) for more than two classes
        Index of the instance with the most attention in each training bag.
    margins_ : ndarray, shape (n,) or (k, n)
        Smallest margin of the selected instance over another instance of its bag, under the certified W of norm one and
        in standardised units. Negative if the soft margin selects another instance, infinite in bags of one instance.
    problem_, solution_ : SelectionProblem and Solution, or tuples of one per class
        The selection and its certified SVM.
    decay_, rounds_ : list
        Chosen decay, and number of rounds of training, of each model.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import AttentionClassifier
    >>> random = np.random.default_rng(0)
    >>> bags = [random.normal(size=(random.integers(2, 6), 3)) for _ in range(40)]
    >>> y = np.arange(40) % 2
    >>> for bag, label in zip(bags, y):
    ...     bag[0] += [4.0, 6.0 * label - 3.0, 0.0]
    >>> model = AttentionClassifier(cv=None, decay=1e-3).fit(bags, y)
    >>> model.score(bags, y) > 0.9, model.solution_.status.name
    (True, 'OPTIMAL')
    """

    # scikit-learn reads these names, although they are mangled: it then routes the mask here by default.
    __metadata_request__fit: ClassVar = {"mask": True}
    __metadata_request__predict: ClassVar = {"mask": True}
    __metadata_request__predict_proba: ClassVar = {"mask": True}
    __metadata_request__decision_function: ClassVar = {"mask": True}
    __metadata_request__transform: ClassVar = {"mask": True}

    def __init__(
        self,
        *,
        decay: float | Iterable[float] = (1e-4, 1e-3, 1e-2),
        steps: int = 160,
        final: Literal["attention", "svm"] = "attention",
        norm: AnyNorm = "frobenius",
        C: float | None = None,
        cv: int | None = 5,
        class_weight: dict[Any, float] | str | None = None,
        bag: Any = None,
        time_limit: float | None = None,
        random_state: Any = 0,
    ) -> None:
        self.decay = decay
        self.steps = steps
        self.final: Literal["attention", "svm"] = final
        self.norm: AnyNorm = norm
        self.C = C
        self.cv = cv
        self.class_weight = class_weight
        self.bag = bag
        self.time_limit = time_limit
        self.random_state = random_state

    def fit(self, X: Any, y: Any, *, mask: Any = None) -> AttentionClassifier:
        """Train attention and head, and certify the selection.

        Parameters
        ----------
        X : list of array_like (T_i, d), array_like (n, T, d), or DataFrame
        y : array_like, shape (n,)
            The class of each bag; a table may have the class of each row instead.
        mask : array_like of bool, shape (n, T), optional
            True where a padded array holds an instance.

        Returns
        -------
        AttentionClassifier
            Itself.

        Raises
        ------
        ValueError
            For bad input.

        Examples
        --------
        >>> from attsvm import AttentionClassifier
        >>> bags = [[[0.0, 1.0], [1.0, 1.0]], [[0.0, -1.0]], [[0.0, 2.0], [0.0, 1.0]], [[3.0, -1.0], [0.0, -2.0]]]
        >>> AttentionClassifier(cv=None).fit(bags, ["up", "down", "up", "down"]).classes_.tolist()
        ['down', 'up']
        """
        decays, steps = self._grid()
        if is_bags(X, mask, self.bag):
            bags = read_bags(X, mask, self.bag)
            y = column_or_1d(self._of_bags(X, y, len(bags)), warn=True)
            self.n_features_in_ = bags.instances.shape[1]
        else:
            X, y = validate_data(self, X, y, dtype=np.float64)
            bags = Bags(X, np.ones((len(X), 1), dtype=bool))
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(codes) != len(bags):
            raise ValueError(f"y has {len(codes)} labels; one for each of {len(bags)} bags was expected.")
        if len(self.classes_) < 2:
            raise ValueError(f"y has {len(self.classes_)} class; two classes or more were expected.")
        spread = bags.instances.std(axis=0)
        self.mean_ = bags.instances.mean(axis=0)
        self.scale_ = np.where(spread > 0, spread, 1.0) * np.sqrt(self.n_features_in_)
        by_class = compute_class_weight(self.class_weight, classes=self.classes_, y=y)
        weights = by_class[codes] / by_class[codes].mean()
        random = check_random_state(self.random_state)
        ends = [1] if len(self.classes_) == 2 else range(len(self.classes_))
        bags, fits = self._standardised(bags), []
        for code in ends:
            one = replace(bags, labels=np.where(codes == code, 1.0, -1.0))
            fits.append(self._fit_one(one, weights, decays, steps, random))
        self.models_, self.selections_, self.decay_, self.rounds_ = (tuple(part) for part in zip(*fits, strict=True))
        single = len(fits) == 1
        self.selected_ = self.selections_[0].selected if single else np.array([s.selected for s in self.selections_])
        self.margins_ = self.selections_[0].margins if single else np.array([s.margins for s in self.selections_])
        problems, solutions = [s.problem for s in self.selections_], [s.solution for s in self.selections_]
        self.problem_, self.solution_ = (problems[0], solutions[0]) if single else (tuple(problems), tuple(solutions))
        return self

    def decision_function(self, X: Any, *, mask: Any = None) -> np.ndarray:
        """Return the log-odds of the second of two classes, (n,), or of each class against the rest, (n, k).

        Examples
        --------
        >>> from attsvm import AttentionClassifier
        >>> bags = [[[0.0, 1.0], [1.0, 1.0]], [[0.0, -1.0]], [[0.0, 2.0], [0.0, 1.0]], [[3.0, -1.0], [0.0, -2.0]]]
        >>> AttentionClassifier(cv=None).fit(bags, [1, 0, 1, 0]).decision_function(bags).shape
        (4,)
        """
        bags = self._read(X, mask)
        scores = np.column_stack([model.log_odds(bags) for model in self.models_])
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any, *, mask: Any = None) -> np.ndarray:
        """Return the class of each bag, (n,).

        Examples
        --------
        >>> from attsvm import AttentionClassifier
        >>> bags = [[[0.0, 1.0], [1.0, 1.0]], [[0.0, -1.0]], [[0.0, 2.0], [0.0, 1.0]], [[3.0, -1.0], [0.0, -2.0]]]
        >>> AttentionClassifier(cv=None).fit(bags, [1, 0, 1, 0]).predict(bags)
        array([1, 0, 1, 0])
        """
        scores = self.decision_function(X, mask=mask)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)]

    def predict_proba(self, X: Any, *, mask: Any = None) -> np.ndarray:
        """Return the probability of each class, (n, k), calibrated on the inner folds.

        Examples
        --------
        >>> from attsvm import AttentionClassifier
        >>> bags = [[[0.0, 1.0], [1.0, 1.0]], [[0.0, -1.0]], [[0.0, 2.0], [0.0, 1.0]], [[3.0, -1.0], [0.0, -2.0]]]
        >>> AttentionClassifier(cv=None).fit(bags, [1, 0, 1, 0]).predict_proba(bags).shape
        (4, 2)
        """
        scores = self.decision_function(X, mask=mask)
        chances = np.exp(-np.logaddexp(0.0, -scores))
        if scores.ndim == 1:
            return np.column_stack([1.0 - chances, chances])
        return chances / chances.sum(axis=1, keepdims=True)

    def transform(self, X: Any, *, mask: Any = None) -> np.ndarray:
        """Return the attention of each bag's instances, (n, T), or (n, k, T) for k > 2 classes; zero beyond the last.

        Examples
        --------
        >>> from attsvm import AttentionClassifier
        >>> bags = [[[0.0, 1.0], [1.0, 1.0]], [[0.0, -1.0]], [[0.0, 2.0], [0.0, 1.0]], [[3.0, -1.0], [0.0, -2.0]]]
        >>> AttentionClassifier(cv=None).fit(bags, [1, 0, 1, 0]).transform(bags)[1]
        array([1., 0.])
        """
        bags = self._read(X, mask)
        weights = np.stack([model.attention(bags) for model in self.models_], axis=1)  # (n, k, T)
        return weights[:, 0] if len(self.models_) == 1 else weights

    def covered(self, X: Any, *, mask: Any = None) -> np.ndarray:
        """Return whether the certified W leads in each bag by the margin of the training bags, bool (n,).

        In such a bag the margin of the selected instance is at least the margin that all training bags have. This must
        hold for every W if there are more than two classes.

        Examples
        --------
        >>> from attsvm import AttentionClassifier
        >>> bags = [[[0.0, 1.0], [1.0, 1.0]], [[0.0, -1.0]], [[0.0, 2.0], [0.0, 1.0]], [[3.0, -1.0], [0.0, -2.0]]]
        >>> AttentionClassifier(cv=None).fit(bags, [1, 0, 1, 0]).covered(bags).all()
        np.True_
        """
        bags = self._read(X, mask)
        return np.all([leads(bags, s.solution) for s in self.selections_], axis=0)

    def guarantee(self, X: Any = None, *, mask: Any = None, names: Any = None) -> str:
        """Say in sentences what is certified about the selection, and how many bags of X its margin covers.

        Parameters
        ----------
        X, mask
            Held-out bags, optional.
        names : sequence of str, optional
            Names of the training bags; their numbers by default.

        Examples
        --------
        >>> from attsvm import AttentionClassifier
        >>> bags = [[[0.0, 1.0], [1.0, 1.0]], [[0.0, -1.0]], [[0.0, 2.0], [0.0, 1.0]], [[3.0, -1.0], [0.0, -2.0]]]
        >>> print(AttentionClassifier(cv=None).fit(bags, [1, 0, 1, 0]).guarantee().split(":")[0])
        One W selects the deciding instance of all 4 bags
        """
        covered = None if X is None else self.covered(X, mask=mask)
        if len(self.selections_) == 1:
            return guarantee(self.selections_[0], covered, names)
        return "\n".join(
            f"{label}, against the rest. {guarantee(selection, covered, names)}"
            for label, selection in zip(self.classes_, self.selections_, strict=True)
        )

    def __sklearn_tags__(self) -> Tags:
        """Say that X may have three dimensions."""
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _grid(self) -> tuple[list[float], int]:
        """Read and check the parameters."""
        decays = [float(decay) for decay in (self.decay if isinstance(self.decay, Iterable) else (self.decay,))]
        if not decays or not all(0 < decay < np.inf for decay in decays):
            raise ValueError(f"decay is {self.decay!r}; a positive number or several were expected.")
        if isinstance(self.steps, bool) or not isinstance(self.steps, (int, np.integer)) or self.steps < 1:
            raise ValueError(f"steps is {self.steps!r}; a positive integer was expected.")
        if self.final not in ("attention", "svm"):
            raise ValueError(f"final is {self.final!r}; 'attention' or 'svm' was expected.")
        if self.cv is not None and (not isinstance(self.cv, (int, np.integer)) or self.cv < 2):
            raise ValueError(f"cv is {self.cv!r}; an integer from 2, or None, was expected.")
        return decays, int(self.steps)

    def _of_bags(self, X: Any, y: Any, count: int) -> Any:
        """Return one label per bag; for a table with one label per row, the label of each bag's rows."""
        if self.bag is None or not hasattr(X, "columns") or len(y) == count:
            return y
        labels, (rows, names) = np.asarray(y), table_bags(X, self.bag)
        for part, name in zip(rows, names, strict=True):
            if len(labels) != len(X) or (labels[part] != labels[part[0]]).any():
                raise ValueError(
                    f"y has {len(labels)} labels, more than one in bag {name!r}; one label per bag was expected."
                )
        return labels[[part[0] for part in rows]]

    def _standardised(self, bags: Bags) -> Bags:
        return replace(bags, instances=(bags.instances - self.mean_) / self.scale_)

    def _read(self, X: Any, mask: Any) -> Bags:
        """Return standardised bags, and refuse bags with another number of features."""
        check_is_fitted(self)
        if is_bags(X, mask, self.bag):
            bags = read_bags(X, mask, self.bag)
            width = bags.instances.shape[1]
            if width != self.n_features_in_:
                raise ValueError(f"bags have {width} features; {self.n_features_in_}, as in fit, were expected.")
        else:
            X = validate_data(self, X, reset=False, dtype=np.float64)
            bags = Bags(X, np.ones((len(X), 1), dtype=bool))
        return self._standardised(bags)

    def _fit_one(
        self, bags: Bags, weights: np.ndarray, decays: list[float], steps: int, random: np.random.RandomState
    ) -> tuple[BagModel, BagSelection, float, int]:
        """Choose decay and rounds on inner folds, train on all bags, and certify."""
        labels = bags.labels
        assert labels is not None
        folds = 0 if self.cv is None else min(self.cv, int(np.bincount(labels > 0, minlength=2).min()))
        decay, rounds, factor = decays[0], -1, 1.0
        if folds >= 2:
            splits = list(StratifiedKFold(folds, shuffle=True, random_state=random).split(labels, labels))
            paths = {
                value: [train_bags(bags.take(rows), weights[rows], value, steps) for rows, _ in splits]
                for value in decays
            }
            losses = {
                (value, end): calibrated(self._held_out(bags, splits, path, end), labels, weights)[1]
                for value, path in paths.items()
                for end in range(min(map(len, path)))
            }
            decay, rounds = min(losses, key=lambda key: losses[key])
            chosen = [path[rounds] for path in paths[decay]]
            if self.final == "svm":
                chosen = [
                    self._certified(model, bags.take(rows), weights[rows], decay)[0]
                    for model, (rows, _) in zip(chosen, splits, strict=True)
                ]
            factor, _ = calibrated(self._held_out(bags, splits, [[m] for m in chosen], 0), labels, weights)
        path = train_bags(bags, weights, decay, steps)
        model, selection = self._certified(path[rounds], bags, weights, decay)
        return replace(model, factor=factor), selection, decay, rounds % len(path) + 1

    def _certified(
        self, model: BagModel, bags: Bags, weights: np.ndarray, decay: float
    ) -> tuple[BagModel, BagSelection]:
        """Solve the SVM of a model's selection; with final="svm" its W replaces the trained one."""
        C = 1.0 / (decay * len(bags)) if self.C is None else self.C
        selection = select(bags, model.W, self.norm, C, self.time_limit)
        if self.final == "svm":
            model = with_svm(model, np.asarray(selection.solution.W), bags, weights, decay)
        return model, selection

    @staticmethod
    def _held_out(bags: Bags, splits: list[Any], paths: list[list[BagModel]], end: int) -> np.ndarray:
        """Return the output for each bag of the model that was not trained on it, (n,)."""
        outputs = np.empty(len(bags))
        for (_, rows), path in zip(splits, paths, strict=True):
            outputs[rows] = path[end].log_odds(bags.take(rows))
        return outputs
