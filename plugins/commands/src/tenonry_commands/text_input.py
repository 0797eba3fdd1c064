"""Text of the command line and of standard input, in locales that are not UTF-8 as well."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO


def read_standard_input() -> str:
    """All of standard input."""
    return as_unicode(_standard_input().read())


def read_line() -> str:
    """The next line of standard input; empty at its end."""
    return as_unicode(_standard_input().readline())


def _standard_input() -> TextIO:
    """Standard input with undecodable bytes as lone surrogates; it cannot be changed after the first read."""
    if isinstance(sys.stdin, io.TextIOWrapper) and sys.stdin.errors != "surrogateescape":
        sys.stdin.reconfigure(errors="surrogateescape")
    return sys.stdin


def as_unicode(text: str) -> str:
    """Decode as UTF-8 bytes that the locale could not decode, such as letters with accents in the locale `C`."""
    try:
        text.encode()
    except UnicodeEncodeError:  # Python keeps such bytes as lone surrogates
        return os.fsencode(text).decode("utf-8", "surrogateescape")
    return text
