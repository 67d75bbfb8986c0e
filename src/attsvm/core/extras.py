"""Packages that only an extra of attsvm installs, and the sentence for a session that lacks one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attsvm

# By package, the extra that brings it; solving, certificates, exact proofs and the scikit-learn faces need none.
EXTRAS = {
    "torch": "torch",
    "matplotlib": "plots",
    "cyclopts": "cli",
    "rich": "cli",
    "jinja2": "cli",
    "pyarrow": "experiments",
    "distributed": "cluster",
    "dask": "cluster",
    "zarr": "cluster",
    "pandas": "frames",
    "transformers": "pretrained",
    "safetensors": "pretrained",
    "PIL": "pretrained",
    "starlette": "playground",
    "uvicorn": "playground",
    "websockets": "playground",
    "anywidget": "playground",
}


class MissingExtra(ImportError):
    """A package that an extra installs is not there; the message is one sentence."""


def missing_extra(user: str, error: ImportError, extra: str | None = None) -> str | None:
    """Name the extra that brings the package an import failed for.

    Parameters
    ----------
    user : str
        What asked for it, as the sentence's subject: "attsvm.train".
    error : ImportError
    extra : str, optional
        The extra that brings all that `user` needs. Default: that of the package.

    Returns
    -------
    str or None
        A sentence, or None if the package belongs to no extra or is there and fails.
    """
    package = (error.name or "").split(".")[0]
    if package not in EXTRAS or not isinstance(error, (ModuleNotFoundError, MissingExtra)):
        return None
    extra = EXTRAS[package] if extra is None else extra
    hint = "; for PyTorch without CUDA see the installation page" if package == "torch" else ""
    return f"{user} needs {package}, which an extra installs: pip install 'attsvm[{extra}]'{hint}."


@contextmanager
def extra_for(user: str, extra: str | None = None) -> Iterator[None]:
    """Import what an extra may lack, under a sentence that names it.

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
        What asks for it, as the subject of the sentence.
    columns : dict of str to array
        Of one length.

    Returns
    -------
    DataFrame

    Raises
    ------
    MissingExtra
        If pandas is not installed.
    """
    with extra_for(user):
        import pandas as pd

        return pd.DataFrame(columns)


def drawing(user: str) -> Any:
    """Return :mod:`attsvm.plots`, which stands above the results that ask to be drawn.

    Parameters
    ----------
    user : str
        What asks for it, as the subject of the sentence.

    Raises
    ------
    MissingExtra
        If matplotlib is not installed.
    """
    with extra_for(user):
        import matplotlib  # noqa: F401
    # A public name of the package, which resolves it on first use.
    return attsvm.plots
