"""Long calls into libraries that Ctrl-C does not reach."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, TypeVar

Result = TypeVar("Result")

# Seconds between looks at signals.
LOOK = 0.1


def interruptible(function: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
    """Call a function that releases the interpreter's lock, so that Ctrl-C is answered at once.

    Python runs signal handlers between the instructions of the main thread, and a call into a library is one
    instruction. The call therefore goes to a second thread while the main thread waits in short steps. A thread cannot
    be ended from outside: after an interruption the call goes on unheard to its own limit, or to the end of the
    program. A child process could be ended, but forking a process whose libraries run threads is not safe, and starting
    a new one costs more than most of these calls. Called from another thread than the main one, which receives no
    signals, the function runs in place.
    """
    if threading.current_thread() is not threading.main_thread():
        return function(*arguments, **options)
    outcome: list[Result] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            outcome.append(function(*arguments, **options))
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=copy_context().run, args=(work,), daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(LOOK)
    if failure:
        raise failure[0]
    return outcome[0]
