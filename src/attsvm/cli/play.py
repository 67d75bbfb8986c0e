"""`attsvm play`: the playground in a browser, served to this machine only."""

from __future__ import annotations

from attsvm.cli.console import BadInput, Exit


def play(*, port: int | None = None, no_browser: bool = False) -> int:
    """Open a page on which tokens, scores and settings can be dragged and the SVM follows. Ctrl-C ends it.

    The page is served on 127.0.0.1 and needs nothing from elsewhere.

    Parameters
    ----------
    port
        Port to listen on; by default 8377, so that an open page finds the next server.
    no_browser
        Print the address and do not open it.
    """
    import webbrowser

    from attsvm.playground.server import ADDRESS, PORT, serve

    if port is not None and not 0 < port < 1 << 16:
        raise BadInput(f"--port is {port}; a number from 1 to {(1 << 16) - 1} was expected.")
    own_port = PORT if port is None else port
    address = f"http://{ADDRESS}:{own_port}/"

    def announce() -> None:
        print(f"The playground is at {address} (Ctrl-C ends it).", flush=True)
        if not no_browser:
            webbrowser.open(address)

    try:
        serve(own_port, announce)
    except OSError as error:
        raise BadInput(f"port {own_port} cannot be used: {error.strerror or error}; --port chooses another.") from error
    except KeyboardInterrupt:
        pass
    return Exit.DONE
