"""Look-ahead at the beginning of a pattern: the conditions together match what `re` matches."""

from __future__ import annotations

import re
from itertools import product

import pytest

from tenonry_grammars.base import GrammarError
from tenonry_grammars.schemas.expressions import matches
from tenonry_grammars.schemas.look_ahead import conditions_of

TEXTS = ["".join(chars) for count in range(6) for chars in product("a1.", repeat=count)]
DECIMAL = r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"  # as pydantic writes it


@pytest.mark.parametrize(
    "pattern",
    [
        DECIMAL,
        r"^(?=.*\d)(?=.*a).{2,4}$",
        r"^(?!a)[a1]+$",
        r"^(?!a$)",
        r"^(?=a|1)(?!(?:a1|1)$).*$",
        r"^(?![.)(|])(a|1)+",
        r"^(?!.*\.\.)[a1.]+$",
        r"^(?=a)(?=1)",
        "^a+$",
        "a|1",
        "",
    ],
)
def test_the_conditions_are_the_pattern(pattern):
    nodes = conditions_of(pattern)
    for text in TEXTS:
        expected = bool(re.search(pattern.replace("$", r"\Z"), text))
        assert all(matches(node, text) for node in nodes) == expected, text


@pytest.mark.parametrize(
    "pattern",
    ["(?=a)b", "a(?=b)", "^(?=a)b|c", "^(?:(?=a)b)", "^(?<=a)b", "^(?=a", "^(?=(?=a)b)c", "^(?>a)"],
)
def test_other_look_around_is_refused(pattern):
    with pytest.raises(GrammarError, match=r"look-around|unclosed"):
        conditions_of(pattern)
