"""What `attsvm play` tells, and when it opens a browser."""

from __future__ import annotations

import io
import socket
from http.server import ThreadingHTTPServer

import pytest

from attsvm.cli.play import play
from attsvm.playground.frontend import INDEX_PAGE


def test_the_place_of_the_page_is_told_before_a_browser_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser in the terminal returns only when it is closed."""
    output, told = io.BytesIO(), []
    monkeypatch.setattr("webbrowser.open", lambda address: told.append(output.getvalue().decode()))
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", io.TextIOWrapper(output, encoding="utf-8"))  # a pipe: written when it is full
        assert play() == 0
    assert told == [f"The playground is {INDEX_PAGE}.\n"]


@pytest.mark.parametrize("no_browser", [False, True])
def test_a_served_page_opens_unless_no_browser_is_wanted(no_browser: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", lambda server: None)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    assert play(port=port, no_browser=no_browser) == 0
    assert opened == ([] if no_browser else [f"http://127.0.0.1:{port}/"])
