r"""
The geometry of words and contexts
==================================

The embeddings of a model that predicts next words are compared with the nuclear-norm SVM and with its published proxy.

A model with an embedding for every context and every word is trained to predict next words. Theory says which
embeddings it approaches without weight decay: the factors of the smallest logits, in the nuclear norm, that separate
the words that follow a context from all others (`2408.15417 <https://arxiv.org/abs/2408.15417>`_). That paper replaces
these logits by a proxy, the centred support matrix. Here both are compared with a trained model.
"""

from collections import Counter
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.sparse import eye_array

from attsvm import SelectionProblem, correlation, solve
from attsvm.data.docstrings import docstrings
from attsvm.data.text import WORD

WORDS, CONTEXTS, DIMENSIONS, DRAWS = 80, 40, 40, 6
texts = [[word.lower() for word in WORD.findall(text)] for text in docstrings().texts]
vocabulary = [word for word, _ in Counter(word for text in texts for word in text).most_common(WORDS)]
number = {word: i for i, word in enumerate(vocabulary)}
counts = np.zeros((WORDS, WORDS))  # (contexts, words that follow)
for first, second in (pair for text in texts for pair in pairwise(text)):
    if first in number and second in number:
        counts[number[first], number[second]] += 1

# %%
# Every draw takes contexts at random and trains a model on the frequencies of the words that follow them: one vector
# per context and per word, logits are inner products, and weight decay is small.
rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
usable = np.flatnonzero(counts.any(axis=1) & ~counts.all(axis=1))
draws = np.array([counts[rng.choice(usable, CONTEXTS, replace=False)] for _ in range(DRAWS)])
target = torch.tensor(draws / draws.sum(axis=2, keepdims=True))
H = (0.1 * torch.randn(DRAWS, CONTEXTS, DIMENSIONS, dtype=torch.double, generator=generator)).requires_grad_()
G = (0.1 * torch.randn(DRAWS, WORDS, DIMENSIONS, dtype=torch.double, generator=generator)).requires_grad_()
optimizer = torch.optim.Adam([H, G], lr=0.03)
for _ in range(800):
    loss = -(target * torch.log_softmax(H @ G.mT, dim=2)).sum() / CONTEXTS
    loss = loss + 5e-5 * ((H**2).sum() + (G**2).sum())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# %%
# The control shuffles the supports and keeps the number of words of each context and of contexts of each word.
def shuffled(support):
    support = support.copy()
    pairs = rng.integers((CONTEXTS, CONTEXTS, WORDS, WORDS), size=(10_000, 4))
    for a, b, s, t in pairs.tolist():
        if support[a, s] and support[b, t] and not support[a, t] and not support[b, s]:
            support[a, [s, t]], support[b, [s, t]] = (False, True), (True, False)
    return support


def inner_products(logits):
    """Inner products of words and of contexts in balanced factors of logits (words, contexts), diagonals left out."""
    U, sigma, Vt = np.linalg.svd(logits, full_matrices=False)
    grams = (U * sigma) @ U.T, (Vt.T * sigma) @ Vt
    return [gram - np.diag(np.diag(gram)) for gram in grams]


kinds = ("certified solution", "centred supports", "solution, shuffled", "centred, shuffled")
cosines = np.zeros((len(kinds), 2, DRAWS))
gaps = []
for i in range(DRAWS):
    model = inner_products((G[i] @ H[i].T).detach().numpy())
    for j, support in enumerate((draws[i] > 0, shuffled(draws[i] > 0))):
        solution = solve(SelectionProblem.from_contexts(eye_array(CONTEXTS), support), "nuclear", tol=1e-6)
        gaps.append(solution.gap)
        for kind, logits in ((2 * j, solution.W), (2 * j + 1, support.T - support.mean(axis=1))):
            cosines[kind, :, i] = [correlation(*pair) for pair in zip(inner_products(logits), model, strict=True)]
print("largest certified gap:", max(gaps))

mean, spread = cosines.mean(axis=2), 2.57 * cosines.std(axis=2, ddof=1) / DRAWS**0.5  # t, 5 degrees of freedom, 95 %
fig, ax = plt.subplots(figsize=(5, 3.2), layout="constrained")
for side, (name, marker) in enumerate((("words", "o"), ("contexts", "D"))):
    ax.errorbar(mean[:, side], np.arange(4) + 0.2 * side, xerr=spread[:, side], fmt=marker, ms=5, capsize=3, label=name)
ax.set_yticks(np.arange(4) + 0.1, kinds)
ax.invert_yaxis()
ax.set(xlim=(min(0, mean.min() - 0.1), 1), xlabel="cosine with the model's inner products")
ax.legend(frameon=False, loc="upper left")
for kind, value, half in zip(kinds, mean, spread, strict=True):
    print(f"{kind}: words {value[0]:.3f} +- {half[0]:.3f}, contexts {value[1]:.3f} +- {half[1]:.3f}")

# %%
# Both are compared on the same draws, so that the differences say more than the two intervals.
gain = cosines[0] - cosines[1]
for name, difference in zip(("words", "contexts"), gain, strict=True):
    print(f"{name}: {difference.mean():.3f} +- {2.57 * difference.std(ddof=1) / DRAWS**0.5:.3f}")
