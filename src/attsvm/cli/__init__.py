"""The command line. Each command is a module of its own, imported only when it is called.

Exit codes: 0 done, 2 bad input, 3 infeasible, 4 undecided or a limit reached, 130 interrupted.
"""

from __future__ import annotations

import io
import sys

from cyclopts import App, CycloptsError

from attsvm import __version__
from attsvm.cli.console import BadInput, Exit, refuse

app = App(
    name="attsvm",
    help="Attention as a support vector machine: certified solvers, exact training, and a verdict on your data.",
    version=__version__,
)
app.command("attsvm.cli.solve:solve", name="solve", help="Find the smallest W that selects given tokens, certified.")
app.command("attsvm.cli.study:study", name="study", help="Train attention on a data set and hold it against its SVM.")
app.command("attsvm.cli.reproduce:reproduce", name="reproduce", help="Run the published experiments, and ours.")
app.command("attsvm.cli.list:list_experiments", name="list", help="List the experiments that reproduce runs.")
app.command("attsvm.cli.inspect:inspect", name="inspect", help="Report on the heads of a pretrained model.")
app.command("attsvm.cli.bench:bench", name="bench", help="Time attsvm beside other solvers (in a checkout).")


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code.

    Parameters
    ----------
    arguments : list of str, optional
        Default: those of the process.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ✓ shows ? instead of failing
    try:
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except (BadInput, CycloptsError) as error:
        return refuse(str(error))
    except KeyboardInterrupt:
        print("Interrupted; nothing was written.", file=sys.stderr)
        return Exit.INTERRUPTED
    return int(code) if isinstance(code, int) else Exit.DONE
