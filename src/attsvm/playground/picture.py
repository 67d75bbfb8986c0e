"""From a message of the page to the answer it draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attsvm.playground.classes import classes_picture
from attsvm.playground.plane import Memory, plane_picture
from attsvm.playground.script import script
from attsvm.playground.state import Classes, read_state

# The largest whole number up to which JavaScript tells neighbours apart.
LARGEST_SEQ = 2**53 - 1


def answer(message: Any, memory: Memory, stale: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Answer one message.

    Parameters
    ----------
    message : dict
        `seq`, a number that comes back; `draft`, whether something is being dragged; `state`.
    memory : Memory
        Of this page.
    stale : callable
        Whether a newer message waits.

    Returns
    -------
    dict
        The picture and `seq`; of a state that does not fit, `error`, a sentence, and `seq`. An answer that is no draft
        has a `script`.

    Raises
    ------
    Supersession
        If `stale` said yes.
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
