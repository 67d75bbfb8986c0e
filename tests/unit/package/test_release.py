"""What a release says of itself: notes, bill of materials, recipe, and one address."""

from __future__ import annotations

import io
import re
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import attsvm
from build_release import VENDORED, bill_of_materials, checksum, licenses, recipe, release_notes
from build_site import published_address
from clean_install import license_expression

ROOT = Path(__file__).parents[3]
CHANGELOG = (
    "# Changelog\n\n## [Unreleased]\n\n- c\n\n## [0.2.0] - 2026-11-22\n\n### Added\n\n- b\n\n## [0.1.0]\n\n- a\n"
)
BSD = "License :: OSI Approved :: BSD License"
REPORT = {
    "install": [
        {
            "metadata": {"name": name, "version": version, **rest},
            "download_info": {
                "url": f"http://127.0.0.1:8000/{name}",
                "archive_info": {"hashes": {"sha256": digest * 64}},
            },
        }
        for name, version, digest, rest in (
            ("attsvm", attsvm.__version__, "a", {"license_expression": "MIT"}),
            ("Scikit_learn", "1.9", "b", {"license": "BSD-3-Clause"}),
            ("numpy", "2.5", "c", {"license": "Copyright\nand so on", "classifier": ["Typing :: Typed", BSD]}),
        )
    ]
}


@pytest.mark.parametrize(("version", "notes"), [("0.2.0", "### Added\n\n- b\n"), ("0.1.0", "- a\n")])
def test_the_notes_are_the_section_of_the_version(version: str, notes: str) -> None:
    assert release_notes(CHANGELOG, version) == notes


def test_a_version_without_a_section_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no section 0\.20"):
        release_notes(CHANGELOG, "0.20")
    assert release_notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), attsvm.__version__)


def test_the_bill_lists_what_is_installed_and_what_the_wheel_holds() -> None:
    bill = bill_of_materials(REPORT, attsvm.__version__)
    assert bill["metadata"]["component"]["name"] == "attsvm"
    parts = {one["name"]: one for one in bill["components"]}
    assert set(parts) == {"Scikit_learn", "numpy", *VENDORED}
    assert parts["Scikit_learn"]["purl"] == "pkg:pypi/scikit-learn@1.9"
    assert parts["Scikit_learn"]["hashes"][0]["content"] == "b" * 64
    assert parts["Scikit_learn"]["licenses"] == [{"license": {"name": "BSD-3-Clause"}}]
    assert parts["numpy"]["licenses"] == [{"license": {"name": "BSD License"}}]  # a text is no name
    assert bill["metadata"]["component"]["licenses"] == [{"expression": "MIT"}]
    assert parts["d3"]["version"].startswith("7.")
    assert "127.0.0.1" not in str(bill)
    assert bill == bill_of_materials(REPORT, attsvm.__version__)


def test_a_package_without_a_licence_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a 1 names no licence"):
        licenses({"name": "a", "version": "1", "license": "Copyright\nand so on", "classifier": ["Typing :: Typed"]})


def test_an_expression_is_read_from_the_wheel(tmp_path: Path) -> None:
    for expression in ("MIT AND 0BSD", ""):
        with zipfile.ZipFile(tmp_path / "a.whl", "w") as archive:
            line = f"License-Expression: {expression}\n" if expression else ""
            archive.writestr("a-1.dist-info/METADATA", f"Metadata-Version: 2.4\nName: a\n{line}\nA text.\n")
        assert license_expression(tmp_path / "a.whl") == ({"license_expression": expression} if expression else {})


def test_the_recipe_has_checksum_and_requirements_of_the_source(tmp_path: Path) -> None:
    sdist = tmp_path / f"attsvm-{attsvm.__version__}.tar.gz"
    content = (ROOT / "pyproject.toml").read_bytes()
    with tarfile.open(sdist, "w:gz") as archive:
        member = tarfile.TarInfo(f"attsvm-{attsvm.__version__}/pyproject.toml")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    text = recipe(sdist)
    assert not re.search("@[a-z]", text)
    assert checksum(sdist) in text
    project = tomllib.loads(content.decode())["project"]
    for requirement in project["dependencies"]:
        assert f"    - {requirement.replace('>=', ' >=')}\n" in text
    assert f"attsvm = {project['scripts']['attsvm']}" in text
    assert all(f"    - {file}\n" in text for file in project["license-files"])
    assert f"license: {project['license']}\n" in text
    assert project["description"] in text


def test_every_file_that_names_the_address_names_the_same() -> None:
    files = [ROOT / part / "pyproject.toml" for part in ("paper", "pretrained")]
    projects = [tomllib.loads(file.read_text(encoding="utf-8"))["project"] for file in files]
    addresses = {project["urls"].get("Documentation") for project in projects}
    citation = re.search(r"^url: (\S+)", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert {published_address(), citation[1] if citation else None} == addresses
