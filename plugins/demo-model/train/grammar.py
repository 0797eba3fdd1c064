"""The templates of the training corpus: `[a|b|c]` picks one, `{slot}` fills in. For the training script only."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import TypeVar

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")
T = TypeVar("T")


def pick(rng: Random, items: Sequence[T]) -> T:
    """One item, drawn with a single `rng.random()`, so that the stream of draws is easy to reason about."""
    return items[int(rng.random() * len(items))]


def expand(rng: Random, template: str, slots: Mapping[str, str] | None = None) -> str:
    """Resolve every choice (innermost first) and every slot of `template`; a missing slot is a KeyError."""
    text = template
    while "[" in text:
        text = _CHOICE.sub(lambda match: pick(rng, match.group(1).split("|")), text)
    while slots is not None and "{" in text:
        text = _SLOT.sub(lambda match: slots[match.group(1)], text)
    return text


def capital(text: str) -> str:
    """`text` with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def article(noun: str) -> str:
    """`noun` with 'a' or 'an' before it, by the first letter, which is right for every noun of the word lists."""
    return ("an " if noun[0].lower() in "aeiou" else "a ") + noun


def new_name(rng: Random, syllables: Sequence[str]) -> str:
    """A rare name of two or three syllables: the model must copy it, not memorise it."""
    return capital("".join(pick(rng, syllables) for _ in range(2 + int(rng.random() * 2))))
