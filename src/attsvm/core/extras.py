"""Packages that only an extra of attsvm installs, and the sentence for a session that lacks one."""

from __future__ import annotations

from importlib import import_module
from typing import Any

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


def missing_extra(user: str, error: ModuleNotFoundError) -> str | None:
    """Name the extra that brings the package an import failed for.

    Parameters
    ----------
    user : str
        What asked for it, as the sentence's subject: "attsvm.train".
    error : ModuleNotFoundError

    Returns
    -------
    str or None
        A sentence, or None if the package belongs to no extra.
    """
    package = (error.name or "").split(".")[0]
    extra = EXTRAS.get(package)
    if extra is None:
        return None
    hint = "; for PyTorch without CUDA see the installation page" if extra == "torch" else ""
    return f"{user} needs {package}, which an extra installs: pip install 'attsvm[{extra}]'{hint}."


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
    ImportError
        If pandas is not installed; the sentence names the extra.
    """
    try:
        pandas = import_module("pandas")
    except ModuleNotFoundError as error:
        raise ImportError(missing_extra(user, error), name=error.name) from None
    return pandas.DataFrame(columns)


def drawing(user: str) -> Any:
    """Return :mod:`attsvm.plots`, which stands above the results that ask to be drawn, hence by name.

    Parameters
    ----------
    user : str
        What asks for it, as the subject of the sentence.

    Raises
    ------
    ImportError
        If matplotlib is not installed; the sentence names the extra.
    """
    try:
        import_module("matplotlib")
    except ModuleNotFoundError as error:
        raise ImportError(missing_extra(user, error), name=error.name) from None
    return import_module("attsvm.plots")
