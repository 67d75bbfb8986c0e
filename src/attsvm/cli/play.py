"""`attsvm play`: the playground in a browser, from its files."""

from __future__ import annotations

import contextlib

from attsvm.cli.console import BadInput, Exit


def play(*, port: int | None = None, no_browser: bool = False) -> int:
    """Open a page on which tokens, scores and settings can be dragged and the SVM follows.

    The page is a file of this package. It computes in the browser and needs no network.

    Parameters
    ----------
    port
        Serve the page on 127.0.0.1 at this port until Ctrl-C, for a browser that cannot open files or that reaches this
        machine through a tunnel.
    no_browser
        Print the page's path, or its address with --port, and do not open it.
    """
    import webbrowser

    from attsvm.playground.frontend import INDEX_PAGE

    if port is not None:
        return _serve(port, no_browser)
    print(INDEX_PAGE if no_browser else f"The playground is {INDEX_PAGE}.", flush=True)
    if not no_browser:
        webbrowser.open(INDEX_PAGE.as_uri())
    return Exit.DONE


def _serve(port: int, no_browser: bool) -> int:
    """Serve the folder of the page until interrupted."""
    import webbrowser
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    from attsvm.playground.frontend import FOLDER

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

    if not 0 < port < 1 << 16:
        raise BadInput(f"--port is {port}; a number from 1 to {(1 << 16) - 1} was expected.")
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), partial(Quiet, directory=str(FOLDER)))
    except OSError as error:
        raise BadInput(f"port {port} cannot be used: {error.strerror or error}; --port chooses another.") from error
    with server:
        address = f"http://127.0.0.1:{port}/"
        print(f"The playground is at {address} (Ctrl-C ends it).", flush=True)
        if not no_browser:
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
    return Exit.DONE
