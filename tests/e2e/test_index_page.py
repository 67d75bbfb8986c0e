"""An index page of a project with an address: the description as such pages render it, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from index_page import README, ROOT, description


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Where the files of the project are published, for as long as the tests run."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=ROOT))
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("width", [1280, 400])
def test_the_pictures_of_readme_are_shown(browser, address: str, width: int) -> None:
    renderer = pytest.importorskip("readme_renderer.markdown", reason="readme-renderer is not installed")
    tab = browser.new_page(viewport={"width": width, "height": 800})
    tab.set_content(renderer.render(description(address=address)), wait_until="load")
    pictures = tab.evaluate("[...document.images].map(one => [one.alt, one.naturalWidth])")
    assert len(pictures) == README.count("![") > 0
    assert all(alt and pixels > 0 for alt, pixels in pictures)
    # Without the address there are words in their places.
    tab.set_content(renderer.render(description()), wait_until="load")
    assert tab.evaluate("document.images.length") == 0
    assert tab.get_by_text("Picture docs/pictures/bags.png of the source distribution").count() == 1
    tab.close()
