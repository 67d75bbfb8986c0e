"""Packages that only an extra of attsvm installs, and the sentence for a session that lacks one."""

from __future__ import annotations

# By package, the extra that brings it; solving, certificates, exact proofs and the scikit-learn faces need none.
EXTRAS = {
    "torch": "torch",
    "matplotlib": "plots",
    "cyclopts": "cli",
    "rich": "cli",
    "jinja2": "cli",
    "pyarrow": "experiments",
    "distributed": "experiments",
    "transformers": "pretrained",
    "safetensors": "pretrained",
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
