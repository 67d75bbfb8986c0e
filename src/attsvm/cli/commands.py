"""The commands by name, and checks that hold for all of them: environment, terminal, refusals."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cyclopts import App, CycloptsError, Parameter

from attsvm import __version__
from attsvm.cli.console import BadInput, Exit, discard, prepare_stream, refuse
from attsvm.platform.environment import check_threads, read_moment

app = App(
    name="attsvm",
    help="Attention as a support vector machine: certified solvers, exact training, and a verdict on your data.",
    version=__version__,
    default_parameter=Parameter(negative=()),  # flags are off by default, so --no-quick would do nothing
    suppress_keyboard_interrupt=False,  # main reports the interruption
)
app.command("attsvm.cli.solve:solve", name="solve", help="Find the smallest W that selects given tokens, certified.")
app.command("attsvm.cli.check:check", name="check", help="Check a certificate in exact arithmetic.")
app.command("attsvm.cli.study:study", name="study", help="Train attention on a data set and compare it with its SVM.")
app.command("attsvm.cli.compare:compare", name="compare", help="Compare two studies on one page.")
app.command("attsvm.cli.entry_points:reproduce", name="reproduce", help="Run the published experiments and new ones.")
app.command("attsvm.cli.entry_points:list", name="list", help="List the experiments of `attsvm reproduce`.")
app.command("attsvm.cli.entry_points:inspect", name="inspect", help="Report on the heads of a pretrained model.")
app.command("attsvm.cli.play:play", name="play", help="Drag tokens in a browser and see the SVM follow.")
app.command("attsvm.cli.bench:bench", name="bench", help="Time attsvm and other solvers (in a checkout).")
app.register_install_completion_command(name="--install-completion")


def run(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code; if output cannot be written, the code is 2.

    The arguments are those of the process by default.
    """
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        prepare_stream(stream)
    try:
        code = _command(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as `head -1`, has closed the output
        discard(sys.stdout)
        return Exit.PIPE_CLOSED
    except OSError as error:
        discard(sys.stdout)
        return _refuse(f"the output cannot be written: {error.strerror or error}.")


def _command(arguments: list[str] | None) -> int:
    try:
        _check_environment()
        _check_arguments(sys.argv[1:] if arguments is None else arguments)
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except (BadInput, CycloptsError) as error:
        return _refuse(str(error))
    except SystemExit as error:  # rich, which writes the help, exits this way if the reader closed the output
        if isinstance(error.__context__, BrokenPipeError):
            return Exit.PIPE_CLOSED
        raise
    return int(code) if isinstance(code, int) else Exit.DONE


def _refuse(message: str) -> int:
    """Print the reason, if stderr can be written."""
    try:
        return refuse(message)
    except OSError:
        discard(sys.stderr)
        return Exit.BAD_INPUT


def _open_streams() -> None:
    """Give standard streams a target if the shell closed them, as `>&-` does."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (for the process)


def _check_arguments(arguments: list[str]) -> None:
    """Refuse an empty argument, such as an unset shell variable; as a path it would mean the current folder.

    Raises BadInput if there is one; the message names its option or its position.
    """
    for place, argument in enumerate(arguments):
        if argument == "" or (argument.startswith("--") and argument.endswith("=")):
            option = (arguments[place - 1] if argument == "" and place else argument).removesuffix("=")
            name = option if option.startswith("--") else f"argument {place + 1}"
            raise BadInput(f"{name} is empty; a value was expected.")


def _check_environment() -> None:
    """Refuse settings on which the libraries would fail with a traceback.

    Raises BadInput if a variable has an invalid value.
    """
    os.environ["MPLBACKEND"] = "agg"  # figures are written to files, never shown
    try:
        check_threads()
        read_moment()
    except ValueError as error:
        raise BadInput(str(error)) from error
