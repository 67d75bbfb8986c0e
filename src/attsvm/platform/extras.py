"""Packages that only an extra of attsvm installs, and the error message when one is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attsvm

# Extra that installs each package. Solving, certificates, exact proofs and the scikit-learn estimators need none.
EXTRAS = {
    "torch": "torch",
    "matplotlib": "plots",
    "cyclopts": "cli",
    "rich": "cli",
    "jinja2": "cli",
    "attsvm_paper": "experiments",
    "pyarrow": "experiments",
    "distributed": "cluster",
    "dask": "cluster",
    "zarr": "cluster",
    "pandas": "frames",
    "attsvm_pretrained": "pretrained",
    "transformers": "pretrained",
    "safetensors": "pretrained",
    "PIL": "pretrained",
    "anywidget": "playground",
}


class MissingExtra(ImportError):
    """A package of an extra is not installed; the message is one sentence."""


def missing_extra(user: str, error: ImportError, extra: str | None = None) -> str | None:
    """Name the extra whose package failed to import.

    Parameters
    ----------
    user : str
        The caller, as the sentence's subject: "attsvm.train".
    extra : str, optional
        The extra that installs everything `user` needs. Default: the extra of the package.

    Returns
    -------
    str or None
        A sentence; None if the package belongs to no extra, or is installed but fails.
    """
    package = (error.name or "").split(".")[0]
    if package not in EXTRAS or not isinstance(error, (ModuleNotFoundError, MissingExtra)):
        return None
    extra = EXTRAS[package] if extra is None else extra
    hint = "; for PyTorch without CUDA see the installation page" if package == "torch" else ""
    return f"{user} needs {package.replace('_', '-')}, which an extra installs: pip install 'attsvm[{extra}]'{hint}."


@contextmanager
def extra_for(user: str, extra: str | None = None) -> Iterator[None]:
    """Import packages of an extra; if one is missing, the error names the extra.

    Parameters
    ----------
    user, extra : str
        As for :func:`missing_extra`.

    Raises
    ------
    MissingExtra
        If the package of an extra is not installed.
    """
    try:
        yield
    except ImportError as error:
        sentence = missing_extra(user, error, extra)
        if sentence is None:
            raise
        raise MissingExtra(sentence, name=error.name) from None


def frame(user: str, columns: dict[str, Any]) -> Any:
    """Make a pandas DataFrame.

    Parameters
    ----------
    user : str
        The caller, as the sentence's subject.
    columns : dict of str to array
        All of the same length.
    """
    with extra_for(user):
        import pandas as pd

        return pd.DataFrame(columns)


def drawing(user: str) -> Any:
    """Return :mod:`attsvm.plots`, which is imported only when a result is drawn.

    ``user`` is the caller, as the sentence's subject.
    """
    with extra_for(user):
        import matplotlib  # noqa: F401
    # A public name of the package, resolved on first use.
    return attsvm.plots
