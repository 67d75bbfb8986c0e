"""Norms by name."""

from __future__ import annotations

from attsvm.core.norms.entrywise import MAX, entrywise_norm
from attsvm.core.norms.frobenius import FROBENIUS
from attsvm.core.norms.norm import FAMILIES, Norm
from attsvm.core.norms.schatten import NUCLEAR, SPECTRAL

BY_NAME: dict[str, Norm] = {norm.name: norm for norm in (FROBENIUS, NUCLEAR, SPECTRAL, MAX)}


def get_norm(norm: Norm | str | float) -> Norm:
    """Find a norm by its name, or by the exponent of an entrywise norm.

    Parameters
    ----------
    norm : Norm, {"frobenius", "nuclear", "spectral", "max"}, other text, or float
        A number p >= 1 (or its decimal text) is the entrywise l_p norm. The texts "schatten:p", "ky-fan:k", "rows:p:q"
        and "columns:p:q" are norms of :mod:`attsvm.norms` with numeric parameters.

    Returns
    -------
    Norm
        In canonical form: "schatten:1" is the nuclear norm.

    Raises
    ------
    ValueError
        If there is no such norm.
    """
    if isinstance(norm, Norm):
        return norm.canonical
    if isinstance(norm, str):
        if norm in BY_NAME:
            return BY_NAME[norm]
        word, *parameters = norm.split(":")
        family, names = FAMILIES.get(word, (Norm, ""))
        if parameters and names:
            try:
                return family.from_words(word, *map(float, parameters)).canonical
            except (TypeError, ValueError):
                pass
    try:
        if isinstance(norm, bool):
            raise ValueError
        return entrywise_norm(float(norm))
    except (TypeError, ValueError):
        texts = ", ".join(repr(f"{word}:{names}") for word, (_, names) in FAMILIES.items() if names)
        raise ValueError(
            f"norm is {norm!r}; one of {', '.join(map(repr, BY_NAME))}, {texts}, a norm of attsvm.norms, "
            "or a number p >= 1 was expected."
        ) from None
