"""Check a folder of pages: every link and anchor leads somewhere, and nothing leaves the folder.

``python release/check_links.py FOLDER`` prints one line per fault. Links may lead to the web. Everything that a page
loads must lie in the folder, under a relative path that names a file.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes that make a browser load a file; it does not load a link or the address of a canonical page.
LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src"), ("object", "data")}
READ = {"canonical", "author", "license"}
SCHEMES = {"data", "mailto", "javascript"}  # they lead to no file


@dataclass
class Page(HTMLParser):
    """Anchors and links of a page; `loads` are the files that a browser requests by itself."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the attributes of one element."""
        attributes = {name: value or "" for name, value in attrs}
        self.anchors |= {attributes[name] for name in ("id", "name") if name in attributes}
        if tag == "link" and attributes.get("rel", "").lower() not in READ:
            self.loads.append(attributes.get("href", ""))
        elif tag in ("a", "area") and "href" in attributes:
            self.links.append(attributes["href"])
        self.loads += [value for name, value in attributes.items() if (tag, name) in LOADED]
        # A data address has a comma without white space after it.
        self.loads += [part.split()[0] for part in re.split(r",\s+", attributes.get("srcset", "")) if part.strip()]


def read(path: Path) -> Page:
    """Return the links and anchors of a file."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def problems(folder: Path) -> list[str]:
    """Return one sentence per link that is broken, leaves the folder, or asks the network."""
    folder = folder.resolve()
    pages = {path: read(path) for path in sorted(folder.rglob("*.html"))}
    files = set(filter(Path.is_file, folder.rglob("*")))
    found = []
    for path, page in pages.items():
        name = path.relative_to(folder).as_posix()
        found += [f"{name} loads {url} from the web" for url in page.loads if urlsplit(url).scheme.startswith("http")]
        for url in page.loads + page.links:
            if reason := _broken(url, path, folder, files, pages):
                found.append(f"{name} has {url!r}, {reason}")
    for path in sorted(folder.rglob("*.css")):
        for url in re.findall(r"url\(\s*[\"']?([^\"')]+)", path.read_text(encoding="utf-8")):
            if reason := _broken(url, path, folder, files, pages):
                found.append(f"{path.relative_to(folder).as_posix()} has {url!r}, {reason}")
    return found


def _broken(url: str, path: Path, folder: Path, files: set[Path], pages: dict[Path, Page]) -> str:
    """Return why a link of a file leads nowhere; None if it leads somewhere."""
    parts = urlsplit(url)
    if parts.scheme in SCHEMES or parts.scheme.startswith("http"):
        return ""
    if parts.scheme or parts.netloc or parts.path.startswith("/"):
        return "which is not relative"
    # The folder holds no links of the file system, and every page has hundreds of entries that all pages share.
    target = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
    if not target.is_relative_to(folder):
        return "which leaves the folder"
    if target not in files:
        return "which is no file"
    # In a link to the playground, a state follows the #, not an anchor.
    anchor = unquote(parts.fragment)
    if anchor and target in pages and "=" not in anchor and anchor not in pages[target].anchors:
        return "an anchor that is not there"
    return ""


def main() -> None:
    """Check the folder that the command names."""
    found = problems(Path(sys.argv[1]))
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
