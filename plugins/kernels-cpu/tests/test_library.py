"""A library that is missing, damaged or of another version is named and never called."""

from __future__ import annotations

from pathlib import Path

import pytest

from tenonry_kernels_cpu.library import PATH, LibraryError, library


def test_missing_library_says_that_there_was_no_compiler(tmp_path: Path):
    with pytest.raises(
        LibraryError, match=r"libkernels\.so is not there: no C compiler .*install gcc"
    ):
        library(tmp_path / "libkernels.so")


@pytest.mark.parametrize("content", [b"", b"not a library", b"\x7fELF" + bytes(60)])
def test_damaged_library_is_named(tmp_path: Path, content: bytes):
    path = tmp_path / "libkernels.so"
    path.write_bytes(content)
    with pytest.raises(LibraryError, match=f"{path} does not load"):
        library(path)


def test_library_of_something_else_is_named():
    other = Path("/lib/x86_64-linux-gnu/libm.so.6")
    if not other.exists():
        pytest.skip("no other library to try")
    with pytest.raises(LibraryError, match=r"does not load.*tenonry_kernels_version"):
        library(other)


@pytest.mark.skipif(not PATH.exists(), reason="no library was built")
def test_library_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tenonry_kernels_cpu.library.VERSION", 99)
    library.cache_clear()
    with pytest.raises(LibraryError, match=r"is of version \d+, and 99 is needed"):
        library()
    library.cache_clear()
