"""Progress on a terminal and in a log, Ctrl-C, and refusals."""

from __future__ import annotations

import io
import signal
from pathlib import Path

import numpy as np
import pytest

from attsvm.cli.console import BadInput, Progress, check_writable, prepare_stream, refusing, tell


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_one_line_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as progress:
        for share in (0.0, 0.1, 0.2):
            assert progress("first", share) is False
        progress("second", 0.5)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("] ")[1] for line in lines] == ["first", "second"]


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with Progress() as progress:
        assert progress("the stage under way", 0.5) is False
    assert "the stage under way" in terminal.getvalue()
    assert "━" in terminal.getvalue()
    assert "s] the stage under way" not in terminal.getvalue()  # the line of a log


def test_the_first_ctrl_c_asks_to_stop_and_the_second_insists(capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    with Progress() as progress:
        assert progress("stage", 0.0) is False
        signal.raise_signal(signal.SIGINT)
        assert progress("stage", 0.1) is True
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert "Ctrl-C again" in capsys.readouterr().err


def test_errors_of_input_are_refused_and_bugs_are_not() -> None:
    with pytest.raises(BadInput, match="sentence"), refusing():
        raise ValueError("a sentence")
    with pytest.raises(BadInput, match=r"^x\.npz: no such file or directory\.$"), refusing():
        raise FileNotFoundError(2, "No such file or directory", "x.npz")
    with pytest.raises(np.linalg.LinAlgError), refusing():
        raise np.linalg.LinAlgError("singular")


def test_a_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    check_writable(tmp_path / "out.npz", directory=False)
    check_writable(tmp_path / "made", directory=True)
    assert [path.name for path in tmp_path.rglob("*")] == ["made"]
    with pytest.raises(BadInput, match="directory"):
        check_writable(tmp_path, directory=False)


@pytest.mark.parametrize(
    ("text", "plain"),
    [("7×10⁻¹⁵", "7x10^-15"), ("✓ 1 − 2×10⁻¹²", "+ 1 - 2x10^-12"), ("‖W‖ “…”", '||W|| "..."'), ("ζ", "?")],
)
def test_what_a_terminal_lacks_is_written_plainly(text: str, plain: str) -> None:
    output = io.BytesIO()
    stream = io.TextIOWrapper(output, encoding="ascii")
    prepare_stream(stream)
    stream.write(text)
    stream.flush()
    assert output.getvalue().decode() == plain


def test_a_power_is_plain_as_a_whole_where_an_encoding_has_some_of_its_digits() -> None:
    output = io.BytesIO()
    stream = io.TextIOWrapper(output, encoding="latin-1")
    prepare_stream(stream)
    stream.write("gap 2×10⁻¹⁴, 3×10⁻⁷ in m²")
    stream.flush()
    assert output.getvalue().decode("latin-1") == "gap 2×10^-14, 3×10^-7 in m²"


def test_a_terminal_that_can_show_signs_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    output = io.BytesIO()
    stream = io.TextIOWrapper(output, encoding="utf-8")
    prepare_stream(stream)
    stream.write("7×10⁻¹⁵ ✓")
    stream.flush()
    assert output.getvalue().decode() == "7×10⁻¹⁵ ✓"


@pytest.mark.parametrize(
    ("variables", "encoding"),
    [
        ({}, "utf-8"),
        ({"LC_ALL": "C"}, "ascii"),
        ({"LANG": "POSIX"}, "ascii"),
        ({"LC_ALL": "de_DE.UTF-8", "LANG": "C"}, "utf-8"),
        ({"LC_ALL": "C", "PYTHONIOENCODING": "utf-8"}, "utf-8"),
        ({"LC_ALL": "C", "PYTHONUTF8": "1"}, "utf-8"),
    ],
)
def test_a_plain_locale_is_ascii_unless_python_is_told_an_encoding(
    variables: dict[str, str], encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LC_ALL", "LC_CTYPE", "LANG", "PYTHONIOENCODING", "PYTHONUTF8"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    prepare_stream(stream)
    assert stream.encoding == encoding


def test_a_terminal_hears_of_progress_every_second_and_a_log_every_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert 5 < Progress().interval <= 60
    monkeypatch.setattr("sys.stderr", Terminal())
    assert 0.1 < Progress().interval <= 1


def test_a_folder_that_may_not_be_looked_into_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def forbidden(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", forbidden)
    with pytest.raises(BadInput, match="permission denied"):
        check_writable(tmp_path / "locked" / "out.npz", directory=False)


@pytest.mark.parametrize("name", ["probe", "elsewhere/probe"])
def test_a_full_disk_names_the_folder_and_not_the_probe_in_it(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fill(dir: Path) -> None:
        raise OSError(28, "No space left on device", str(dir / name))

    monkeypatch.setattr("attsvm.cli.console.TemporaryFile", fill)
    target, named = tmp_path / "out.npz", tmp_path / name if "/" in name else tmp_path
    with pytest.raises(BadInput) as refusal:
        check_writable(target, directory=False)
    assert str(refusal.value) == f"--out {target} cannot be written: {named}: no space left on device."


@pytest.mark.parametrize(
    ("error", "reason"), [(OSError(28, "No space left on device"), "No space left on device"), (OSError("odd"), "odd")]
)
def test_an_output_that_fails_is_told_on_stderr_with_its_reason(
    error: OSError, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    tell("a line", Full())
    assert capsys.readouterr().err == f"attsvm: the output cannot be written: {reason}.\n"
