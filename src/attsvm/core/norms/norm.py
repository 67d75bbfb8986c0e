r"""The interface between norms and solvers.

Methods need the norm, its dual norm for bounds, and smooth approximations (:mod:`attsvm.core.norms.smoothing`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from attsvm.core.error_free import Pair
from attsvm.core.norms.smoothing import Smooth

UNKNOWN = "norm is {!r}; one of attsvm.norms was expected."

# Class of a norm by its first word, with its numeric parameters in a text "word:p:q"; subclasses register themselves.
FAMILIES: dict[str, tuple[type[Norm], str]] = {}


class Norm(ABC):
    r"""A norm on d x dz matrices; two norms are equal when their definitions are.

    Attributes
    ----------
    name : str
    invariant : bool
        Whether orthogonal changes of basis leave the norm unchanged, so that the span of the data suffices (Lemma 1 of
        arXiv 2308.16898).
    power : float or None
        The exponent p of an entrywise norm; infinite for the largest entry, None for other norms.
    smooth : bool
        Whether the norm and its dual are differentiable away from zero, so that the solution is unique.
    euclidean : bool
        Whether it is the Frobenius norm of W, or of W in other coordinates. Losses are then added to half the square,
        and at the optimum W is :math:`A^\top\lambda` in those coordinates.
    leaves : int
        Number of component norms that have a dual norm in closed form.
    dual_resolution : float
        Relative difference of two bounds of :meth:`dual` on nearly the same matrix; zero for closed forms.

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

    def __init_subclass__(cls, *, families: Mapping[str, str] | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        FAMILIES.update({word: (cls, parameters) for word, parameters in (families or {}).items()})

    @classmethod
    def from_words(cls, word: str, *parts: Any) -> Norm:
        """Return the norm of :meth:`words`, whose parts are numbers, arrays and norms here.

        Examples
        --------
        >>> from attsvm import norms
        >>> norms.Mixed.from_words("rows", 2.0, 1.0)
        <norm l_2,1 of rows>
        """
        return cls(*parts)

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
        """Evaluate the dual norm of M (d, dz), the largest <M, V> over V of norm one, or an upper bound on it.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norms.Entrywise(1).dual(np.array([[3.0, -4.0]]))
        4.0
        """

    @abstractmethod
    def smoothing(self, V: np.ndarray, mu: float) -> Smooth:
        """Evaluate the smooth approximation of :mod:`attsvm.core.norms.smoothing` with weight mu at V (p, r).

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norms.Entrywise(3).smoothing(np.array([[1.0], [-1.0]]), 1e-6).gradient.round(6)
        array([[ 0.62996],
               [-0.62996]])
        """

    def dual_of_parts(self, parts: Sequence[np.ndarray]) -> float:
        """Bound the dual norm of a sum by its terms, ``leaves`` matrices (d, dz), one per component norm.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norms.Sum(1, "max").dual_of_parts([np.array([[2.0]]), np.array([[3.0]])])
        3.0
        """
        return self.dual(parts[0])

    def dual_near(self, M: np.ndarray, V: np.ndarray) -> float:
        """Bound the dual norm of M (d, dz) cheaply, given V (d, dz) with a large product <M, V> relative to its norm.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norms.Entrywise(1).dual_near(np.array([[3.0, -4.0]]), np.array([[0.0, -1.0]]))
        4.0
        """
        return self.dual(M)

    def dual_after(self, M: np.ndarray, smooth: Smooth, step: np.ndarray) -> float:
        """Evaluate the dual norm of M (d, dz), which nearly equals a smoothing's gradient after a short step (d, dz).

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
        """The entrywise norm of the singular values, as a row, if the norm is invariant."""
        return None

    @property
    def canonical(self) -> Norm:
        """The same norm in its canonical form: Schatten-1 is the nuclear norm."""
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

        The general bound follows from :math:`\|E\| \le \sum|E_{ac}|\|e_a e_c^\top\|` by Cauchy and Schwarz.

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
        """Return an inner norm and the image of M (d, dz) with the same norm (or dual norm); None if there is none.

        Returns
        -------
        inner : Norm
        image : Pair, shape (d, dz)
        error : float
            Upper bound on the error of the image in the Frobenius norm.

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
        r"""Bound the relative error of the computed :meth:`value` (or :meth:`dual`), in units of rounding.

        Entrywise norms count the operations on each entry: if :math:`|\hat a_k - a_k| \le \gamma_j |a_k|` for every
        entry, a norm that grows with the sizes of its entries has the same relative error. Norms of singular values
        are bounded by :mod:`attsvm.core.rounding`, except as components of another norm. Each computed singular value
        then has an error of at most a modest multiple of the unit times the largest one (LAPACK Users' Guide, section
        4.9.1). The multiple is taken to be 8 (d dz + 8), and min(d, dz) times this for a norm of singular values.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norms.Entrywise(1).roundings((2, 2)) < norms.Entrywise(1).roundings((20, 20)) < 1000
        True
        """
        return 8.0 * (math.prod(shape) + 8) * min(shape)

    def mismatch(self, shape: tuple[int, int]) -> str | None:
        """Return a sentence about the first array of the norm that does not fit W of this shape (d, dz), or None.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norms.Weighted(np.ones((3, 2)), 1).mismatch((2, 2))
        'weights has shape (3, 2); the shape of W, (d, dz) = (2, 2), was expected.'
        """
        return None

    def distance_bound(self, gap: float) -> tuple[float, float]:
        r"""Bound the distance from a feasible W to the solution W* by the relative gap of its norm.

        A norm that is not strictly convex may have several solutions. Its bound is an estimate, the bound of the
        Frobenius norm.

        Returns
        -------
        distance : float
            Relative to the norm of W, measured in l_p.
        p : float
            The exponent; 2 for norms that are not entrywise.

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
            Relative to the largest entry or singular value of G: values within it of the largest count as largest,
            values within it of zero as zero.
        dual : bool
            Take the ball of the dual norm.
        point : ndarray, shape (d, dz), optional
            A positive multiple of a point of the face, in its interior if possible; needed for the ball of a sum or
            maximum of norms.

        Returns
        -------
        ndarray, shape (k, d dz)
            Orthonormal rows, flattened matrices; none for a smooth norm. They span the directions of the face, or more
            for a sum or maximum of norms.

        Raises
        ------
        ValueError
            If the faces of the norm are unknown, or the point is on no face that G exposes.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import norms
        >>> norms.Entrywise(np.inf).face(np.array([[3.0], [0.0]]), 1e-9)
        array([[0., 1.]])
        """
        return np.empty((0, G.size)) if self.smooth else self._corner(G, tolerance, dual, point)

    def _corner(self, G: np.ndarray, tolerance: float, dual: bool, point: np.ndarray | None) -> np.ndarray:
        """Directions of a face of a non-smooth norm; see :meth:`face`."""
        raise ValueError(UNKNOWN.format(self.name))

    def dual_on_face(self, G: np.ndarray, V: np.ndarray, tolerance: float) -> float:
        """Bound the dual norm from above; for a sum or maximum of norms by the split that V determines.

        Parameters
        ----------
        G : ndarray, shape (d, dz)
        V : ndarray, shape (d, dz)
            The product <G, V> is nearly the largest of all matrices with the norm of V.
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
        """Project X (d, dz) on the unit ball, in the Frobenius norm; None if no projection is known.

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
            If the norm cannot be evaluated on tensors.

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
            If the checker does not know the norm.

        Examples
        --------
        >>> from attsvm import norms
        >>> norms.Mixed(2, 1).words()
        ['rows', 2.0, 1.0]
        """
        raise ValueError(f"norm is {self.name!r}; a norm of attsvm.norms was expected of a certificate.")

    def evidence(self, M: np.ndarray, *, dual: bool = False) -> list[Any] | None:
        """Return evidence for :mod:`attsvm.check` that bounds the norm, or dual norm, of a matrix (d, dz) near M.

        Norms of singular values give singular vectors. A composition of two norms gives the evidence of both and, for
        the dual, a split of M. Other norms give None.

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
