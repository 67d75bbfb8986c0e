"""The result of :func:`attsvm.regularization_path`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attsvm.core.norms import Norm
from attsvm.core.types import Array
from attsvm.platform.extras import drawing, frame
from attsvm.platform.interop import is_tensor, to_numpy
from attsvm.platform.summary import MARKED, Summarised, Summary, line
from attsvm.solution.solution import Solution
from attsvm.solution.solution_set import distance_to_solutions


@dataclass(frozen=True, eq=False, repr=False)
class RegularizationPath(Summarised):
    """Minimisers of the risk in balls of growing radius.

    Attributes
    ----------
    radius : array, shape (radii,)
    W : array, shape (..., radii, d, dz)
        Minimisers; K Q^T for the factored path.
    loss : array, shape (..., radii)
    stationarity : array, shape (..., radii)
        1 - <-G, W> / (||G||_dual ||W||) for the gradient G: 0 if no direction inside the ball descends.
    norm : Norm

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import TokenData, regularization_path, solve
    >>> data = TokenData(np.array([[[1.0, 0.0], [0.0, 0.0]]]), np.array([[1.0]]), np.array([1.0]))
    >>> path = regularization_path(data, np.array([1.0, 0.0]), radii=[1.0, 10.0])
    >>> path.distance(solve(data.problem([0]))).round(6)
    array([0., 0.])
    """

    radius: np.ndarray
    W: Array
    loss: Array
    stationarity: Array
    norm: Norm

    def distance(self, solution: Array | Solution | Sequence[Solution]) -> Array:
        """Return the Frobenius distance of each W to the SVM solutions, all scaled to norm one in the path's norm.

        Parameters
        ----------
        solution : Solution, or a list with one per trial, or array (..., d, dz)
            Result of :func:`attsvm.solve` in this norm. The distance is to the *set* of solutions, which may have more
            than one member in the nuclear, spectral, l_1 and largest-entry norms. For an array W_mm the distance is to
            this matrix.

        Returns
        -------
        array, shape (..., radii)

        Raises
        ------
        ValueError
            If a solution is in another norm, was not found, or does not fit.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import TokenData, regularization_path, solve
        >>> data = TokenData(np.array([[[1.0, 0.0], [0.0, 0.0]]]), np.array([[1.0]]), np.array([1.0]))
        >>> path = regularization_path(data, np.array([1.0, 0.0]), radii=[1.0, 10.0])
        >>> path.distance(solve(data.problem([0]))).round(6)
        array([0., 0.])
        """
        W = torch.as_tensor(self.W).double().cpu().numpy()
        flat = W.reshape(-1, *W.shape[-3:])  # (B, R, d, dz)
        solutions = [solution] if isinstance(solution, Solution) else solution
        if isinstance(solutions, (list, tuple)) and all(isinstance(one, Solution) for one in solutions):
            if len(solutions) != len(flat):
                raise ValueError(
                    f"solution has {len(solutions)} solutions for {len(flat)} trials; one per trial was expected."
                )
            if any(one.norm != self.norm for one in solutions):
                raise ValueError(
                    f"solution is in the norm {solutions[0].norm.name!r}; {self.norm.name!r} was expected."
                )
            rows = [[distance_to_solutions(w, one) for w in path] for path, one in zip(flat, solutions, strict=True)]
        else:
            targets = np.broadcast_to(to_numpy("solution", solution), W.shape[:-3] + W.shape[-2:])
            rows = [
                [float(np.linalg.norm(w / self.norm.value(w) - target / self.norm.value(target))) for w in path]
                for path, target in zip(flat, targets.reshape(-1, *W.shape[-2:]), strict=True)
            ]
        result = np.array(rows).reshape(W.shape[:-2])
        return torch.as_tensor(result).to(torch.as_tensor(self.W)) if is_tensor(self.W) else result

    def to_frame(self) -> Any:
        """List the radii of a path of one trial.

        Returns
        -------
        pandas.DataFrame
            Columns radius, loss and stationarity.

        Raises
        ------
        ImportError
            Without pandas.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import TokenData, regularization_path
        >>> data = TokenData(np.array([[[1.0, 0.0], [0.0, 0.0]]]), np.array([[1.0]]), np.array([1.0]))
        >>> path = regularization_path(data, np.array([1.0, 0.0]), radii=[1.0, 10.0])
        >>> list(path.to_frame().columns)
        ['radius', 'loss', 'stationarity']
        """
        columns = {name: to_numpy(name, getattr(self, name)) for name in ("radius", "loss", "stationarity")}
        return frame("RegularizationPath.to_frame", columns)

    def plot(self, solution: Solution | None = None, ax: Any = None) -> Any:
        """Draw the risk over the radius, or the distance from a solution; see :func:`attsvm.plots.regularisation`.

        Parameters
        ----------
        solution : Solution, optional
        ax : matplotlib Axes, optional

        Returns
        -------
        Axes

        Raises
        ------
        ImportError
            Without matplotlib.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm import TokenData, regularization_path
        >>> data = TokenData(np.array([[[1.0, 0.0], [0.0, 0.0]]]), np.array([[1.0]]), np.array([1.0]))
        >>> path = regularization_path(data, np.array([1.0, 0.0]), radii=[1.0, 10.0])
        >>> path.plot().get_xlabel()
        'frobenius norm of W, at most'
        """
        return drawing("RegularizationPath.plot").regularisation(self, solution, ax)

    def _summary(self) -> Summary:
        radius, stationarity = np.asarray(self.radius), to_numpy("stationarity", self.stationarity)
        facts = [
            ("norm", self.norm.name),
            ("radii", f"{len(radius)}, from {radius[0]:.4g} to {radius[-1]:.4g}"),
            ("largest stationarity", f"{stationarity.max():.1e}"),
        ]
        loss = to_numpy("loss", self.loss)
        picture = line(radius, loss) if loss.ndim == 1 and radius[0] >= 1 else ""
        return Summary("RegularizationPath", "", MARKED, facts, picture, "loss over the radius")
