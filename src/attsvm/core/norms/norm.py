r"""What a norm on matrices is to the solvers.

A method needs the norm and its dual, which certify, and one smooth approximation of the norm for every :math:`\mu > 0`,

.. math:: f_\mu(V) \to \|V\| \quad (\mu \to 0), \qquad \|\nabla f_\mu(V)\|_* \le 1, \qquad
   \nabla f_{c\mu}(cV) = \nabla f_\mu(V) \quad (c > 0),

convex, with its gradient and Hessian: the first property makes a minimiser of :math:`f_\mu` nearly one of the norm, the
second makes its gradient a dual point, the third gives the tangent of the path of minimisers,
:math:`\mu\,\partial_\mu\nabla f_\mu(V) = -\nabla^2 f_\mu(V) V` (Euler). :mod:`attsvm.core.norms.smoothing` has the
parts that such functions are composed of.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attsvm.core.error_free import Pair

# What norms contribute to a gradient, and the product of its derivative with a direction.
Parts = tuple[tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]], ...]

UNKNOWN = "norm is {!r}; one of attsvm.norms was expected."


@dataclass(frozen=True)
class Smooth:
    """A smooth approximation of a norm at one matrix V (p, r).

    Attributes
    ----------
    value : float
    gradient : ndarray, shape (p, r)
        Of dual norm one at most.
    curvature : ndarray, shape (p r, p r), or callable
        The Hessian, V flattened row by row, or what forms it.
    parts : tuple of (ndarray, callable)
        For a norm composed of others: what each contributes to the gradient, (p, r), and the product of the derivative
        of that with a direction (p r,).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import norms
    >>> smooth = norms.Schatten(2).smoothing(np.array([[3.0], [4.0]]), 1e-8)
    >>> type(smooth).__name__, round(smooth.value, 6), smooth.gradient.round(6).ravel().tolist()
    ('Smooth', 5.0, [0.6, 0.8])
    """

    value: float
    gradient: np.ndarray
    curvature: np.ndarray | Callable[[], np.ndarray]
    parts: Parts = ()

    @cached_property
    def hessian(self) -> np.ndarray:
        """The Hessian, formed when it is first asked for."""
        return self.curvature() if callable(self.curvature) else self.curvature

    @property
    def leaves(self) -> Parts:
        """The contributions of all norms that it is composed of: its own alone where there are no parts."""
        return self.parts or ((self.gradient, lambda step: self.hessian @ step),)


class Norm(ABC):
    r"""A norm on d x dz matrices; two norms are equal when they measure alike by construction.

    Attributes
    ----------
    name : str
    invariant : bool
        Whether the norm is unchanged by orthogonal changes of the token and the query basis, so that the problem may be
        solved in the span of the data (Lemma 1 of arXiv 2308.16898).
    power : float or None
        The exponent p of an entrywise norm; infinite for the largest entry, None for the others.
    smooth : bool
        Whether the norm and its dual are differentiable away from zero, so that the solution is unique.
    euclidean : bool
        Whether it is the Frobenius norm of W, or of W in other coordinates: a soft margin is then added to half the
        square, and at the optimum W is :math:`A^\top\lambda` in those coordinates.
    leaves : int
        Number of norms with a dual norm in closed form that it is composed of.
    dual_resolution : float
        How far, relatively, two bounds of :meth:`dual` on nearly the same matrix may be apart: zero for closed forms.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import norms
    >>> norm = norms.Schatten(1)
    >>> M = np.diag([3.0, 4.0])
    >>> isinstance(norm, norms.Norm), round(norm.value(M), 6), round(norm.dual(M), 6)
    (True, 7.0, 4.0)
    """

    name: str
    invariant: bool = False
    power: float | None = None
    smooth: bool = False
    euclidean: bool = False
    leaves: int = 1
    dual_resolution: float = 0.0

    @abstractmethod
    def value(self, M: np.ndarray) -> float:
        """Evaluate the norm of M (d, dz).

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norms.Entrywise(1).value(np.array([[3.0, -4.0]]))
        7.0
        """

    @abstractmethod
    def dual(self, M: np.ndarray) -> float:
        """Evaluate the dual norm of M (d, dz), the largest <M, V> over V of norm one; never less than it.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norms.Entrywise(1).dual(np.array([[3.0, -4.0]]))
        4.0
        """

    @abstractmethod
    def smoothing(self, V: np.ndarray, mu: float) -> Smooth:
        """Evaluate the smooth approximation of the module's derivation at V (p, r).

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norms.Entrywise(3).smoothing(np.array([[1.0], [-1.0]]), 1e-6).gradient.round(6)
        array([[ 0.62996],
               [-0.62996]])
        """

    def dual_of_parts(self, parts: Sequence[np.ndarray]) -> float:
        """Bound the dual norm of a sum by its parts, ``leaves`` matrices (d, dz), one for each norm in closed form.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norms.Sum(1, "max").dual_of_parts([np.array([[2.0]]), np.array([[3.0]])])
        3.0
        """
        return self.dual(parts[0])

    def dual_near(self, M: np.ndarray, V: np.ndarray) -> float:
        """Bound the dual norm of M (d, dz) at little cost, given V (d, dz), whose product with M is large for its norm.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norms.Entrywise(1).dual_near(np.array([[3.0, -4.0]]), np.array([[0.0, -1.0]]))
        4.0
        """
        return self.dual(M)

    def dual_after(self, M: np.ndarray, smooth: Smooth, step: np.ndarray) -> float:
        """Evaluate the dual norm of M (d, dz), nearly the gradient of a smoothing a short step (d, dz) further on.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norm, V = norms.Entrywise(3), np.array([[1.0], [-1.0]])
        >>> smooth = norm.smoothing(V, 1e-6)
        >>> round(norm.dual_after(smooth.gradient, smooth, np.zeros((2, 1))), 3)
        1.0
        """
        return self.dual(M)

    @property
    def profile(self) -> Norm | None:
        """For an invariant norm: the entrywise norm of the singular values, a row, that it is."""
        return None

    @property
    def canonical(self) -> Norm:
        """The same norm as the solvers know it: Schatten-1 is the nuclear norm."""
        return self

    @property
    def base(self) -> Norm:
        """The norm of W in the coordinates of :attr:`transform`."""
        return self

    @property
    def transform(self) -> tuple[np.ndarray | None, np.ndarray | None]:
        """L (d, d) and R (dz, dz), None for the identity, such that the norm of L X R^T is :attr:`base` of X."""
        return None, None

    def growth(self, shape: tuple[int, int], dual: bool = False) -> float:
        r"""Bound the norm (or the dual norm) of every matrix of this shape with Frobenius norm one, to rounding.

        In general :math:`\|E\| \le \sum|E_{ac}|\|e_a e_c^\top\|`, and Cauchy and Schwarz do the rest.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norms.Entrywise(1).growth((3, 3))
        3.0
        """
        measure, square = self.dual if dual else self.value, 0.0
        for place in range(math.prod(shape)):
            corner = np.zeros(math.prod(shape))
            corner[place] = 1.0
            square += measure(corner.reshape(shape)) ** 2
        return math.sqrt(square)

    def image(self, M: np.ndarray, dual: bool) -> tuple[Norm, Pair, float] | None:
        """Return the matrix that another norm (or its dual norm) measures in place of M (d, dz); None for the same.

        Returns
        -------
        inner : Norm
        image : Pair, shape (d, dz)
        error : float
            Upper bound on how far, in the Frobenius norm, the image is from the exact one.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> inner, image, error = norms.Mahalanobis(A=[[4.0]]).image(np.array([[3.0]]), False)
        >>> inner.name, image.rounded().round(9).tolist(), error < 1e-20
        ('frobenius', [[6.0]], True)
        """
        return None

    def roundings(self, shape: tuple[int, int], dual: bool = False) -> float:
        r"""Bound the relative error of :meth:`value` (or :meth:`dual`) as computed, in units of rounding.

        For norms of the entries a count of the operations that an entry passes through, since
        :math:`|\hat a_k - a_k| \le \gamma_j |a_k|` for every term gives the same bound for a norm that grows with the
        sizes of its entries. Norms of singular values are bounded by other means (:mod:`attsvm.core.rounding`); where
        they are part of another norm, each computed value is off by at most a modest multiple of the unit times the
        largest one (LAPACK Users' Guide, section 4.9.1), taken to be 8 (d dz + 8), and a norm of them by min(d, dz)
        times as much.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norms.Entrywise(1).roundings((2, 2)) < norms.Entrywise(1).roundings((20, 20)) < 1000
        True
        """
        return 8.0 * (math.prod(shape) + 8) * min(shape)

    def mismatch(self, shape: tuple[int, int]) -> str | None:
        """Say in a sentence which of the norm's own arrays does not fit W of this shape (d, dz); None when all do.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norms.Weighted(np.ones((3, 2)), 1).mismatch((2, 2))
        'weights has shape (3, 2); that of W, (d, dz) = (2, 2), was expected.'
        """
        return None

    def distance_bound(self, gap: float) -> tuple[float, float]:
        r"""How far from the solution W* a feasible W may lie whose norm exceeds the smallest by a relative gap.

        For norms that are not strictly convex, which may have several solutions, it is an estimate: that of the
        Frobenius norm.

        Returns
        -------
        distance : float
            Relative to the norm of W, measured in l_p.
        p : float
            That p; 2 for norms that are not entrywise.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norms.Schatten(2).distance_bound(1e-8)
        (0.0001414213562373095, 2.0)
        """
        return math.sqrt(2.0 * gap), 2.0

    def face(
        self, G: np.ndarray, tolerance: float, *, dual: bool = False, point: np.ndarray | None = None
    ) -> np.ndarray:
        """Directions of the face that G exposes in the unit ball of the norm, or of its dual.

        Parameters
        ----------
        G : ndarray, shape (d, dz)
            Not zero.
        tolerance : float
            Relative to the largest entry or singular value of G: what is this near to the largest counts as largest,
            what is this near to zero as zero.
        dual : bool
            Take the ball of the dual norm.
        point : ndarray, shape (d, dz), optional
            A positive multiple of a point of the face, inside it if possible; needed for the ball of a sum of norms or
            of the larger of two.

        Returns
        -------
        ndarray, shape (k, d dz)
            Orthonormal rows, flattened matrices; none for a smooth norm. They span the directions of the face; of a sum
            or the larger of two they may span more.

        Raises
        ------
        ValueError
            If the faces of the norm are not known, or the point is on no face that G exposes.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norms.Entrywise(np.inf).face(np.array([[3.0], [0.0]]), 1e-9)
        array([[0., 1.]])
        """
        return np.empty((0, G.size)) if self.smooth else self._corner(G, tolerance, dual, point)

    def _corner(self, G: np.ndarray, tolerance: float, dual: bool, point: np.ndarray | None) -> np.ndarray:
        """Directions of a face of a norm that is not smooth; see :meth:`face`."""
        raise ValueError(UNKNOWN.format(self.name))

    def dual_on_face(self, G: np.ndarray, V: np.ndarray, tolerance: float) -> float:
        """Bound the dual norm from above; that of a sum or of the larger of two by the split that V shows.

        Parameters
        ----------
        G : ndarray, shape (d, dz)
        V : ndarray, shape (d, dz)
            Nearly with the largest product with G of all matrices of its norm.
        tolerance : float
            As for :meth:`face`.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> G = np.array([[3.0, 0.0], [0.0, 1.0]])
        >>> round(norms.Sum("nuclear", "spectral").dual_on_face(G, np.diag([1.0, 0.0]), 1e-9), 9)
        1.5
        """
        return self.dual(G)

    def nearest(self, X: np.ndarray) -> np.ndarray | None:
        """Project X (d, dz) on the unit ball, in the Frobenius norm; None where no projection is known.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norms.Entrywise(1).nearest(np.array([[3.0, -2.5]]))
        array([[ 0.75, -0.25]])
        """
        return None

    def of_tensor(self, W: Any) -> Any:
        """Evaluate the norm of the last two dimensions of a torch tensor (..., d, dz), differentiably.

        Raises
        ------
        ValueError
            If the norm has no such form.

        Examples
        --------
        >>> import torch
        >>> from attsvm import norms
        >>> norms.Entrywise(1).of_tensor(torch.tensor([[3.0, -4.0]])).item()
        7.0
        """
        raise ValueError(UNKNOWN.format(self.name))

    def words(self) -> list[Any]:
        """Name the norm for :mod:`attsvm.check`: a word, then numbers, arrays, norms or such lists.

        Raises
        ------
        ValueError
            If it does not know the norm.

        Examples
        --------
        >>> from attsvm import norms
        >>> norms.Mixed(2, 1).words()
        ['rows', 2.0, 1.0]
        """
        raise ValueError(f"norm is {self.name!r}; a norm of attsvm.norms was expected of a certificate.")

    def evidence(self, M: np.ndarray, *, dual: bool = False) -> list[Any] | None:
        """Return what bounds the norm, or the dual norm, of a matrix (d, dz) near M for :mod:`attsvm.check`.

        Singular vectors for norms of singular values; for two norms a split of M, where it is the dual, and what bounds
        both; for other norms nothing.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norms.Entrywise(1).evidence(np.eye(2)) is None, len(norms.Schatten(3).evidence(np.eye(2)))
        (True, 2)
        """
        return None

    @cached_property
    def _key(self) -> Hashable:
        return self.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Norm) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"<norm {self.name}>"
