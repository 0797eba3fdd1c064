"""Text of the command line and of standard input, in locales that are not UTF-8 as well."""

from __future__ import annotations

import os


def as_unicode(text: str) -> str:
    """Decodes as UTF-8 what the locale could not decode, such as every letter with an accent in the locale `C`."""
    try:
        text.encode()
    except UnicodeEncodeError:  # Python keeps such bytes as lone surrogates
        return os.fsencode(text).decode("utf-8", "surrogateescape")
    return text
