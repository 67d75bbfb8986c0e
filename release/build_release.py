"""Rehearse a release: write everything to upload into one folder, and test installations from these files.

``python release/build_release.py`` writes build/release: wheels and source distributions of both packages, the
notebooks with a wheel, a conda recipe and its package, a bill of materials, the release notes, and the checksums of all
these. Arguments go to tests/clean_install.py, whose environments test the built files.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import uuid
from pathlib import Path
from typing import Any

import attsvm
from clean_install import INSTALLED

ROOT = Path(__file__).resolve().parents[1]
RELEASE = ROOT / "build" / "release"
RECIPE = ROOT / "release" / "recipe.yaml"
# Third-party files in the wheel: the file that describes their origin, the version in it, the licence.
VENDORED = {
    "d3": ("src/attsvm/playground/static/vendoring.md", r"D3 ([\d.]+\d)", "ISC"),
    "stix-two-math": ("src/attsvm/report/font/vendoring.md", r"([\d.]+\d)", "OFL-1.1"),
}


def release_notes(changelog: str, version: str) -> str:
    """Return the section of a version.

    Raises
    ------
    ValueError
        If the changelog has no such section.
    """
    found = re.search(rf"^## \[{re.escape(version)}\][^\n]*\n(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE)
    if not found:
        raise ValueError(f"CHANGELOG.md has no section {version}; a line ## [{version}] - DATE was expected.")
    return found[1].strip() + "\n"


def licenses(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the licence that a package states: an expression, else a name of one line, else its classifiers.

    Raises
    ------
    ValueError
        If it states none of these.
    """
    if expression := metadata.get("license_expression"):
        return [{"expression": expression}]
    name = metadata.get("license", "")
    classifiers = [one for one in metadata.get("classifier", ()) if one.startswith("License :: ")]
    names = [name] if name and "\n" not in name else [one.rpartition(" :: ")[2] for one in classifiers]
    if not names:
        raise ValueError(f"{metadata['name']} {metadata['version']} names no licence.")
    return [{"license": {"name": one}} for one in names]


def bill_of_materials(report: dict[str, Any], version: str) -> dict[str, Any]:
    """Return the packages of pip's report and the third-party files of the wheel, as CycloneDX 1.6."""
    components = []
    for item in report["install"]:
        metadata, archive = item["metadata"], item["download_info"]["archive_info"]
        component = {
            "type": "library",
            "name": metadata["name"],
            "version": metadata["version"],
            "purl": f"pkg:pypi/{re.sub(r'[-_.]+', '-', metadata['name']).lower()}@{metadata['version']}",
            "hashes": [{"alg": "SHA-256", "content": archive["hashes"]["sha256"]}],
            "licenses": licenses(metadata),
        }
        components.append(component)
    for name, (file, pattern, license_id) in VENDORED.items():
        found = re.search(pattern, (ROOT / file).read_text(encoding="utf-8"))
        assert found, file
        components.append({
            "type": "library",
            "name": name,
            "version": found[1],
            "licenses": [{"expression": license_id}],
        })  # fmt: skip
    components.sort(key=lambda one: one["name"].lower())
    (package,) = (one for one in components if one["name"] == "attsvm")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        # The same files give the same bill.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, package['hashes'][0]['content'])}",
        "version": 1,
        "metadata": {"component": package | {"type": "library", "version": version}},
        "components": [one for one in components if one is not package],
    }


def project_table(sdist: Path) -> dict[str, Any]:
    """Return the pyproject.toml of a source distribution."""
    with tarfile.open(sdist) as archive:
        member = archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/pyproject.toml")
        assert member
        return tomllib.loads(member.read().decode())


def recipe(sdist: Path) -> str:
    """Return the recipe of a source distribution, with its checksum and the requirements of its pyproject.toml."""
    content = project_table(sdist)
    text = RECIPE.read_text(encoding="utf-8")
    lists = {"host": content["build-system"]["requires"], "run": content["project"]["dependencies"]}
    values = {"version": attsvm.__version__, "sha256": checksum(sdist)}
    values |= {name: "\n    - ".join(one.replace(">=", " >=") for one in lines) for name, lines in lists.items()}
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def write_conda(sdist: Path, wheel: Path) -> None:
    """Write the recipe next to its source distribution, and its package, which must hold the files of the wheel."""
    from build_conda import build_package, difference

    path = RELEASE / "recipe.yaml"
    path.write_text(recipe(sdist), encoding="utf-8")
    with tempfile.TemporaryDirectory() as name:
        package = build_package(path, project_table(sdist)["build-system"]["requires"], Path(name))
        if names := difference(package, wheel):
            sys.exit(f"{package.name} and {wheel.name} differ in {', '.join(names)}")
        shutil.copy(package, RELEASE)


def checksum(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main() -> None:
    """Build, test, describe."""
    version = attsvm.__version__
    notes = release_notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    shutil.rmtree(RELEASE, ignore_errors=True)
    RELEASE.mkdir(parents=True)
    notebook = ("--notebook", ROOT / "notebooks" / "scikit-learn.ipynb")  # one with the smallest extra
    check = (sys.executable, ROOT / "tests" / "clean_install.py", "--out", RELEASE, *notebook, *sys.argv[1:])
    if subprocess.run(check, cwd=ROOT).returncode:
        sys.exit(1)
    distributions = [*RELEASE.glob("*.whl"), *RELEASE.glob("*.tar.gz")]
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *distributions], check=True)

    installed = RELEASE / INSTALLED
    bill = bill_of_materials(json.loads(installed.read_text(encoding="utf-8")), version)
    installed.unlink()
    (RELEASE / f"attsvm-{version}.cdx.json").write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    (RELEASE / "release-notes.md").write_text(notes, encoding="utf-8")
    write_conda(RELEASE / f"attsvm-{version}.tar.gz", RELEASE / f"attsvm-{version}-py3-none-any.whl")
    for file in (*sorted((ROOT / "notebooks").glob("*.ipynb")), RELEASE / f"attsvm-{version}-py3-none-any.whl"):
        (RELEASE / "notebooks").mkdir(exist_ok=True)
        shutil.copy(file, RELEASE / "notebooks")
    files = sorted(path for path in RELEASE.rglob("*") if path.is_file())
    sums = "".join(f"{checksum(file)}  {file.relative_to(RELEASE).as_posix()}\n" for file in files)
    (RELEASE / "SHA256SUMS").write_text(sums, encoding="utf-8")
    print(f"{RELEASE}: {len(files) + 1} files; docs/releasing.md says what remains")


if __name__ == "__main__":
    main()
