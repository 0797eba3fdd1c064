"""Sets of characters as sorted ranges of code points, and how they are written in a class. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

Range = tuple[int, int]
Chars = tuple[Range, ...]

LAST = 0x10FFFF
SURROGATES: Chars = ((0xD800, 0xDFFF),)


def union(*parts: Iterable[Range]) -> Chars:
    """All of them, without overlaps."""
    merged: list[Range] = []
    for low, high in sorted(one for part in parts for one in part):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def complement(chars: Iterable[Range]) -> Chars:
    """All other characters of Unicode, without surrogates."""
    left = []
    start = 0
    for low, high in union(chars, SURROGATES):
        if start < low:
            left.append((start, low - 1))
        start = high + 1
    if start <= LAST:
        left.append((start, LAST))
    return tuple(left)


@lru_cache(8192)
def minus(chars: Chars, taken: Chars) -> Chars:
    """`chars` without `taken`."""
    return complement(union(complement(chars), taken))


def of(text: str) -> Chars:
    """The characters of a text."""
    return union((ord(char), ord(char)) for char in text)


def has(chars: Chars, char: str) -> bool:
    """Return True if the character is one of `chars`."""
    return any(low <= ord(char) <= high for low, high in chars)


ANY = complement(())
DIGITS = of("0123456789")
WORD = union(((0x30, 0x39), (0x41, 0x5A), (0x61, 0x7A)), of("_"))
ASCII: Chars = ((0, 0x7F),)
BLANKS = of("\t\n\v\f\r ")
# White space in the reading of ECMA 262, of Python or of Rust.
ALL_BLANKS = union(
    BLANKS,
    of("\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"),
    ((0x2000, 0x200A),),
)
LINE_ENDS = of("\n\r\u2028\u2029")
NOT_A_LINE_END = complement(LINE_ENDS)
NOT_ASCII = complement(ASCII)
# What each shorthand means in every reading, ECMA's, Python's and Rust's, and what it means in any of them: a class
# has the former, and one that is negated lacks the latter. So what is chosen is right however the answer is checked.
SHORTHANDS: dict[str, tuple[Chars, Chars]] = {
    "d": (DIGITS, union(DIGITS, NOT_ASCII)),
    "D": (minus(ASCII, DIGITS), complement(DIGITS)),
    "w": (WORD, union(WORD, NOT_ASCII)),
    "W": (minus(ASCII, WORD), complement(WORD)),
    "s": (BLANKS, ALL_BLANKS),
    "S": (complement(ALL_BLANKS), complement(BLANKS)),
}
