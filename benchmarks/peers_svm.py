"""Support vector machines of scikit-learn, with a hard margin by a large C on token differences.

A classifier without intercept has the constraints (delta kron z)^T w >= 1 if its examples y (delta kron z) carry label
y. LIBLINEAR gets alternating signs. LIBSVM always fits an intercept; it gets every example with both signs, so that the
intercept is zero by symmetry.
"""

from __future__ import annotations

import numpy as np
from peers import Answer, constraint_matrix, spread

from attsvm import SelectionProblem

HARD = 1e6
MANY = 10_000_000


def with_liblinear(problem: SelectionProblem) -> Answer:
    from sklearn.svm import LinearSVC

    A = constraint_matrix(problem)
    signs = np.where(np.arange(len(A)) % 2, -1.0, 1.0)
    A *= signs[:, None]
    machine = LinearSVC(C=HARD, loss="hinge", dual=True, fit_intercept=False, tol=1e-6, max_iter=MANY)  # pyright: ignore[reportArgumentType]
    machine.fit(A, signs)
    return Answer(machine.coef_.reshape(problem.shape[2:]), None, "solved")


def with_libsvm(problem: SelectionProblem) -> Answer:
    from sklearn.svm import SVC

    A = constraint_matrix(problem)
    machine = SVC(C=HARD, kernel="linear", tol=1e-6, cache_size=2000)
    machine.fit(np.concatenate([A, -A]), np.repeat([1.0, -1.0], len(A)))
    both = np.zeros(2 * len(A))
    both[machine.support_] = np.abs(machine.dual_coef_[0])
    return Answer(machine.coef_.reshape(problem.shape[2:]), spread(problem, both[: len(A)] + both[len(A) :]), "solved")
