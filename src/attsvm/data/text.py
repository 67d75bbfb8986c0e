r"""Labelled texts of a CSV file as token sequences, one token per word.

Words are lower-cased runs of letters or digits. Their vectors are fitted on the file itself, so that nothing is
downloaded. Let :math:`n_{ij}` be the number of times words i and j occur within a window. The positive pointwise mutual
information :math:`\max(0, \log n_{ij} n / (n_i n_j))` is factored by a truncated SVD, and rows of :math:`U\sqrt{S}` are
scaled to length one. Levy and Goldberg (NIPS 2014) show that word2vec factors this matrix. Labels are not used. A text
is the sequence of its distinct words: a repeated word would be two equal tokens, and attention can select neither.

Other vectors, such as the hidden states of a model, enter by :func:`from_vectors`.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attsvm.data.dataset import Dataset
from attsvm.data.passages import Passages, Span
from attsvm.data.token_data import TokenData

WORD = re.compile(r"[^\W_]+")
DIMENSIONS = 32
WINDOW = 4
MOST_TOKENS = 64
# Largest dimension of tokens. A model's hidden states have hundreds, and the time to train W is quadratic in it.
MOST_DIMENSIONS = 64
# Largest number of hidden-state entries in memory: 1 GiB in single precision.
MOST_STATES = 1 << 28
# Least number of occurrences of a word: one occurrence gives only one context.
LEAST_COUNT = 2
# Largest number of rows: the training rows of a study and some thousands held out.
MOST_ROWS = 8000


@dataclass(frozen=True)
class LabelledTexts:
    """Texts with one of two labels.

    Attributes
    ----------
    name : str
        Name of the file.
    labels : ndarray, shape (n,)
        -1 and +1.
    classes : tuple of str
        The meaning of +1 and of -1.
    notes : tuple of str
        Sentences about rows left out, duplicates, and how the file was read.
    """

    name: str
    texts: tuple[str, ...]
    labels: np.ndarray
    classes: tuple[str, str]
    notes: tuple[str, ...] = ()

    def take(self, rows: np.ndarray) -> LabelledTexts:
        """Return the given rows, in that order."""
        return replace(self, texts=tuple(self.texts[i] for i in rows), labels=self.labels[rows])

    def drawn(self, most: int) -> tuple[np.ndarray, LabelledTexts]:
        """Draw up to ``most`` rows at random, always the same for a file; return indices, and the texts with a note."""
        n = len(self.texts)
        if n <= most:
            return np.arange(n), self
        rows = np.sort(np.random.default_rng(n).choice(n, most, replace=False))
        note = f"{most:,} of {n:,} texts were drawn at random; the others are neither trained on nor held out."
        return rows, replace(self.take(rows), notes=(*self.notes, note))


def word_dataset(texts: LabelledTexts, dimensions: int = DIMENSIONS, most: int = MOST_ROWS) -> Dataset:
    """Convert texts to sequences of word vectors fitted on them.

    Parameters
    ----------
    dimensions : int
        Largest dimension of the vectors; it is smaller if there are fewer words.
    most : int
        Largest number of rows; vectors are fitted on all texts.

    Raises
    ------
    ValueError
        If the texts have too few words in common to fit vectors.
    """
    words = [[sys.intern(match.group().lower()) for match in WORD.finditer(text)] for text in texts.texts]
    counts = Counter(word for text in words for word in text)
    vocabulary = sorted(word for word, count in counts.items() if count >= LEAST_COUNT)
    if len(vocabulary) < 3:
        raise ValueError(
            f"the texts of {texts.name} have {len(vocabulary)} words that occur twice; 3 or more were expected."
        )
    number = {word: i for i, word in enumerate(vocabulary)}
    numbers = [[number[word] for word in text if word in number] for text in words]
    vectors = fit_vectors(numbers, len(vocabulary), dimensions)
    rows, text_rows = texts.drawn(most)
    different = [list(dict.fromkeys(numbers[i])) for i in rows]
    sequences = [vectors[text] for text in different]
    places = [{word: t for t, word in enumerate(text)} for text in different]
    spans = [_word_spans(text, number, place) for text, place in zip(text_rows.texts, places, strict=True)]
    notes = (
        f"Tokens are the different words of a text, as {vectors.shape[1]}-dimensional vectors of length one fitted on "
        f"the file (positive pointwise mutual information within {WINDOW} words, truncated SVD); words that occur once "
        "are left out.",
    )
    return from_vectors(text_rows, sequences, notes, spans)


def _word_spans(text: str, number: dict[str, int], place: dict[int, int]) -> list[Span]:
    """Find the words of a text that are tokens; `place` maps the number of a word to its token."""
    words = ((match, number.get(match.group().lower())) for match in WORD.finditer(text))
    return [(match.start(), match.end(), place[word]) for match, word in words if word is not None]


def fit_vectors(texts: Sequence[Sequence[int]], words: int, dimensions: int) -> np.ndarray:
    """Fit word vectors to texts given as word numbers.

    Parameters
    ----------
    words : int
        Size of the vocabulary.

    Returns
    -------
    ndarray, shape (words, min(dimensions, words - 1))

    Raises
    ------
    ValueError
        If no words occur together more often than by chance.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.linalg import svds

    flat = np.array([word for text in texts for word in text], dtype=np.int32)
    owner = np.repeat(np.arange(len(texts), dtype=np.int32), [len(text) for text in texts])
    neighbours = [(flat[:-k], flat[k:], owner[:-k] == owner[k:]) for k in range(1, WINDOW + 1)]
    first = np.concatenate([before[same] for before, _, same in neighbours])
    second = np.concatenate([after[same] for _, after, same in neighbours])
    ones = np.ones(2 * len(first))
    pairs = (np.concatenate([first, second]), np.concatenate([second, first]))
    table = coo_array((ones, pairs), shape=(words, words)).tocsr().tocoo()
    total = np.maximum(table.sum(axis=0), 1.0)
    row, column = table.coords
    information = np.log(table.data * table.data.sum() / (total[row] * total[column]))
    positive = coo_array((np.maximum(information, 0.0), (row, column)), shape=(words, words)).tocsr()
    if not positive.count_nonzero():
        raise ValueError(
            "no two words of the texts stand together more often than by chance; texts of several words were expected."
        )
    rank = min(dimensions, words - 1)
    # A fixed start gives one set of vectors per file, up to rotations for equal singular values.
    left, sigma, _ = svds(positive, k=rank, v0=np.ones(words), return_singular_vectors=True)
    assert left is not None
    order = np.argsort(-sigma, kind="stable")
    vectors = left[:, order] * np.sqrt(sigma[order])
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)


def principal_components(sequences: Sequence[np.ndarray], dimensions: int) -> tuple[list[np.ndarray], float]:
    """Project vectors on their principal directions, and scale them to mean length one.

    Parameters
    ----------
    sequences : sequence of ndarray, shape (T_i, d)

    Returns
    -------
    sequences : list of ndarray, shape (T_i, min(dimensions, d))
    share : float
        Share of the variance that is retained.
    """
    count = sum(map(len, sequences))
    mean = np.sum([rows.sum(axis=0, dtype=float) for rows in sequences], axis=0) / count
    spread = np.zeros((len(mean), len(mean)))
    for rows in sequences:  # one text at a time, so that no second copy of all vectors is in memory
        spread += (rows - mean).T @ (rows - mean)
    values, vectors = np.linalg.eigh(spread / count)
    basis = vectors[:, ::-1][:, :dimensions]  # (d, dimensions), largest variance first
    projections = [(rows - mean) @ basis for rows in sequences]
    scale = sum(float(np.linalg.norm(rows, axis=1).sum()) for rows in projections) / count or 1.0
    share = float(values[::-1][:dimensions].sum() / values.sum()) if values.sum() > 0 else 1.0
    return [rows / scale for rows in projections], share


def from_vectors(
    texts: LabelledTexts,
    sequences: Sequence[np.ndarray],
    notes: Sequence[str],
    spans: Sequence[Sequence[Span]] | None = None,
) -> Dataset:
    """Make a data set of one vector sequence per text; texts with none, and tokens after the 64th, are left out.

    Parameters
    ----------
    sequences : sequence of ndarray, shape (T_i, d)
    notes : sequence of str
        Description of the vectors.
    spans : sequence of sequence of (int, int, int), optional
        Positions of each vector in its text, so that a report can mark them.

    Raises
    ------
    ValueError
        If no text has a token, or all texts with tokens have the same label.
    """
    cut = [sequence[:MOST_TOKENS] for sequence in sequences]
    rows = [i for i, sequence in enumerate(cut) if len(sequence)]
    labels = texts.labels[rows]
    if len(set(labels.tolist())) < 2:
        raise ValueError(f"the texts of {texts.name} that have tokens all have one label; two were expected.")
    longest = max(len(cut[i]) for i in rows)
    tokens = np.zeros((len(rows), longest, cut[rows[0]].shape[1]))
    mask = np.zeros(tokens.shape[:2], dtype=bool)
    for row, i in enumerate(rows):
        tokens[row, : len(cut[i])] = cut[i]
        mask[row, : len(cut[i])] = True
    queries = tokens.sum(axis=1) / mask.sum(axis=1, keepdims=True)
    passages = None
    if spans is not None:
        places = [[span for span in spans[i] if span[2] < MOST_TOKENS] for i in rows]
        passages = Passages.of_texts((texts.texts[i] for i in rows), places)
    remarks = ["The query of a text is its mean token."]
    if len(rows) < len(sequences):
        remarks.append(f"Texts without a token are left out, {len(sequences) - len(rows)} in all.")
    if max(map(len, sequences)) > MOST_TOKENS:
        remarks.append(f"Texts are cut after {MOST_TOKENS} tokens.")
    return Dataset(
        name=f"{texts.name}, {texts.classes[0]} against {texts.classes[1]}",
        tokens=TokenData(tokens, queries, labels, mask),
        classes=texts.classes,
        notes=(*notes, *remarks, *texts.notes),
        passages=passages,
        centre=True,
    )
