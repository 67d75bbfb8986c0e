"""Variables of the environment: what holds without them, and what is refused."""

from __future__ import annotations

import pytest

from attsvm.platform.environment import COMPILE, MOMENTS, THREADS, check_threads, read_moment


def test_kernels_are_compiled_in_the_background_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMPILE, raising=False)
    assert read_moment() == "background"
    for moment in MOMENTS:
        monkeypatch.setenv(COMPILE, moment)
        assert read_moment() == moment
    monkeypatch.setenv(COMPILE, "soon")
    with pytest.raises(ValueError, match=r"^ATTSVM_COMPILE is 'soon'; one of 'background', 'later', 'first' was"):
        read_moment()


@pytest.mark.parametrize(("text", "is_number"), [(None, True), ("1", True), ("16", True), ("0", False), ("two", False)])
def test_threads_are_a_positive_number(monkeypatch: pytest.MonkeyPatch, text: str | None, is_number: bool) -> None:
    monkeypatch.delenv(THREADS, raising=False)
    if text is not None:
        monkeypatch.setenv(THREADS, text)
    if is_number:
        check_threads()
    else:
        with pytest.raises(ValueError, match=rf"^NUMBA_NUM_THREADS is '{text}'; a positive integer was expected\.$"):
            check_threads()
