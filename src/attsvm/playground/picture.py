"""Answers to the messages of the page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attsvm.playground.classes import classes_picture
from attsvm.playground.plane import PageMemory, plane_picture
from attsvm.playground.script import script
from attsvm.playground.state import Classes, read_state

# The largest integer up to which JavaScript distinguishes neighbours.
LARGEST_SEQ = 2**53 - 1


def answer(message: Any, memory: PageMemory, stale: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Answer one message.

    Parameters
    ----------
    message : dict
        `seq`, a number that is returned; `draft`, whether something is being dragged; `state`.
    memory : PageMemory
        Memory of this page.
    stale : callable
        Returns whether a newer message waits.

    Returns
    -------
    dict
        The picture and `seq`; for an invalid state, `error`, a sentence, and `seq`. An answer that is not a draft has a
        `script`.

    Raises
    ------
    Supersession
        If `stale` returned True.
    """
    fields = message if isinstance(message, dict) else {}
    seq, draft = fields.get("seq"), bool(fields.get("draft"))
    if seq is not None and not (type(seq) in (int, float) and abs(seq) <= LARGEST_SEQ):  # also for NaN
        return {"seq": None, "error": f"seq is no number of a message; up to {LARGEST_SEQ} was expected."}
    try:
        state = read_state(fields.get("state"))
        compute = classes_picture if isinstance(state, Classes) else plane_picture
        picture = compute(state, draft=draft, memory=memory, stale=stale)  # pyright: ignore[reportArgumentType]
    except ValueError as error:
        return {"seq": seq, "error": str(error)}
    if not draft:
        picture["script"] = script(state)
    return picture | {"seq": seq}
