"""Text from the command line and standard input in any locale."""

from __future__ import annotations

import io

import pytest

from tenonry_commands.text_input import as_unicode, read_line, read_standard_input


@pytest.mark.parametrize(
    "text", ["plain", "Größe", "ÿ is one letter in latin-1", "\N{GRINNING FACE}", ""]
)
def test_what_the_locale_decoded_is_left_as_it_is(text):
    assert as_unicode(text) == text


@pytest.mark.parametrize("text", ["Größe", "日本語", "\N{GRINNING FACE}"])
def test_what_an_ascii_locale_could_not_decode_is_utf_8(text):
    assert as_unicode(text.encode().decode("ascii", "surrogateescape")) == text


def test_what_is_no_utf_8_stays_a_surrogate_which_the_engine_refuses():
    assert as_unicode("a\udcff") == "a\udcff"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_lines_of_a_strict_standard_input_are_read_one_after_the_other(monkeypatch, encoding):
    data = io.BytesIO("Größe\nzwei\nRest é".encode())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(data, encoding=encoding, errors="strict"))
    assert [read_line(), read_line(), read_standard_input()] == ["Größe\n", "zwei\n", "Rest é"]
