"""Text from the command line and standard input in any locale."""

from __future__ import annotations

import pytest

from tenonry_commands.text_input import as_unicode


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
