"""Build the site: pages, gallery, notebooks, playground, and a report of each command, in one folder of static files.

``python release/build_site.py [FOLDER]`` writes build/site. Its links are relative, so it opens from disk and under
any path of any host. The address in pyproject.toml, if there is one, goes into sitemap.xml and into what a link preview
shows; ``--address`` names another.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

from attsvm.playground.frontend import FOLDER
from check_links import problems

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build" / "site"
# Reports of the commands in the README, on the smallest figures of the paper.
STUDY = ("study", "bags")
REPRODUCTION = ("reproduce", "gd-paths", "prompt-attention", "--quick")
# Reports that are enough to check the site's links.
SHORT_STUDY = (*STUDY, "--train", "50", "--steps", "300", "--max-steps", "300", "--shuffles", "1")
SHORT_REPRODUCTION = ("reproduce", "gd-paths", "--quick", "--set", "trials=1")


def published_address() -> str | None:
    """Return the address of the site from pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project["urls"].get("Documentation")


def run(*command: str, cwd: Path) -> None:
    """Run a command of this Python's environment; end with its output if it fails."""
    name, *arguments = command
    process = subprocess.run(
        [Path(sys.executable).with_name(name), *arguments],
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"COLUMNS": "120"},
    )
    if process.returncode:
        sys.exit(f"{' '.join(command)}\n{process.stdout}")


def write_reports(folder: Path, *, short: bool) -> None:
    """Write a study and a reproduction; relative paths, because a report prints its command."""
    folder.mkdir(parents=True)
    run("attsvm", *(SHORT_STUDY if short else STUDY), "--out", "study", cwd=folder)
    run("attsvm", *(SHORT_REPRODUCTION if short else REPRODUCTION), "--out", "reproduction", cwd=folder)


def write_sitemap(site: Path, address: str) -> None:
    """List every page."""
    urls = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    entries = "".join(f"<url><loc>{escape(f'{address}/{url}')}</loc></url>\n" for url in urls)
    (site / "sitemap.xml").write_text(
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{entries}</urlset>\n',
        encoding="utf-8",
    )


def build(site: Path, address: str | None, reports: Path | None, *, short: bool = False) -> None:
    """Build into a folder next to the site, and put it in the site's place once it is whole."""
    site.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=site.parent) as name:
        pages, extra = Path(name) / "pages", Path(name) / "extra"
        shutil.copytree(FOLDER, extra / "playground")
        if reports is None:
            write_reports(extra / "reports", short=short)
        else:
            shutil.copytree(reports, extra / "reports")
        options = ["-t", "site", "-D", f"html_extra_path={extra}", "-D", f"html_baseurl={address or ''}"]
        options += ["-d", str(site.parent / "doctrees")]
        run("sphinx-build", "-W", "--keep-going", "-q", "-b", "html", *options, "docs", str(pages), cwd=ROOT)
        if address:
            write_sitemap(pages, address)
        found = problems(pages)
        found += [
            f"{path.relative_to(pages)} holds a path of this machine"
            for path in pages.rglob("*.html")
            if str(ROOT) in path.read_text(encoding="utf-8")
        ]
        if found:
            sys.exit("\n".join(found))
        shutil.rmtree(site, ignore_errors=True)
        pages.rename(site)


def main() -> None:
    """Build the site and say where it is."""
    parser = argparse.ArgumentParser(description="Build the site in one folder of static files.")
    parser.add_argument("folder", nargs="?", type=Path, default=SITE)
    parser.add_argument("--address", default=published_address(), help="where the site is published")
    parser.add_argument("--reports", type=Path, metavar="FOLDER", help="copy build/site/reports of an earlier build")
    parser.add_argument("--short", action="store_true", help="reports of short runs: to check links, not to publish")
    options = parser.parse_args()
    address = options.address and options.address.rstrip("/")
    build(options.folder.resolve(), address, options.reports, short=options.short)
    if not options.address:
        print("without an address: no sitemap, no link previews (docs/releasing.md)")
    print(options.folder / "index.html")


if __name__ == "__main__":
    main()
