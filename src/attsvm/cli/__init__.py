"""The command line. Each command is a separate module, imported only when it is called.

Exit codes: 0 done, 1 a certificate is rejected, 2 bad input, 3 infeasible, 4 undecided or a limit reached, 130
interrupted, 141 the program that read the output has closed it.

Nothing is imported here, so that Ctrl-C is handled from the start.
"""

from __future__ import annotations


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit code.

    The arguments are those of the process by default.
    """
    try:
        from attsvm.cli.commands import run

        return run(arguments)
    except KeyboardInterrupt as error:
        import sys

        print(*error.args or ("Interrupted; nothing was written.",), file=sys.stderr)
        return 130
    except ImportError as error:
        import sys

        from attsvm.platform.extras import missing_extra

        sentence = missing_extra("this command", error)
        if sentence is None:
            raise
        command = sys.argv[1:] if arguments is None else arguments
        without = " python -m attsvm.check FILE works without it." if command[:1] == ["check"] else ""
        print(f"attsvm: {sentence}{without}", file=sys.stderr)
        return 2
