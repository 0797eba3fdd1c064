"""The parser that `auto` chooses for a template reads the calls of this template: whole, and split anywhere."""

from __future__ import annotations

import pytest
from conversations import (
    ARGUMENTS,
    ONE,
    TOOLS,
    Called,
    events_of,
    find,
    function,
    markers_of,
    parsers_of,
    reading_of,
    turn_of,
    with_reasoning,
)
from families import FAMILIES

from tenonry_output_parsers.auto import recognised

LEAST_RIGHT = 0.9  # of the public templates that show calls
ONE_CALL = {"harmony"}
# Tools as servers of the Model Context Protocol publish them: schemas of many generators, some without properties.
PUBLISHED = [
    *TOOLS,
    function(
        "files.search-all",
        {
            "path": {"type": "string", "title": "Path", "description": "Where to look."},
            "limit": {
                "anyOf": [{"type": "integer"}, {"type": "null"}],
                "default": None,
                "description": "Most.",
            },
            "kind": {
                "type": "string",
                "enum": ["file", "folder"],
                "description": "What to look for.",
            },
            "recursive": {"type": "boolean", "default": False, "description": "Below, too."},
        },
    ),
    function("list_allowed", {}),
]
SEARCH = (
    Called("files.search-all", {"path": "/a b/ü", "limit": 5, "kind": "file", "recursive": True}),
)


def outcome(source, calls, tools=TOOLS):
    """`none` if the template shows no call; `right`; else the calls that were read instead."""
    parsers = parsers_of(source)
    turn = turn_of(source, calls, markers_of(parsers), tools)
    if turn is None:
        return "none"
    if not any(parser.reads_calls for parser in parsers):
        return f"no parser for {turn.text!r}"
    turn = with_reasoning(parsers, turn)
    events = events_of(parsers, turn, [turn.text], tools)
    for pieces in (list(turn.text), *cuts(turn.text)):
        assert events_of(parsers, turn, pieces, tools) == events, pieces
    try:
        reading = reading_of(events)
    except ValueError:
        return f"no JSON from {turn.text!r}"
    return (
        "right"
        if reading.calls == list(calls) and not reading.text
        else f"{reading} from {turn.text!r}"
    )


def cuts(text):
    """The text in two pieces, in at most forty ways."""
    step = -(-len(text) // 40)
    return [[text[:at], text[at:]] for at in range(0, len(text), step)]


@pytest.mark.nightly_after(8)
@pytest.mark.parametrize("family", FAMILIES)
def test_auto_chooses_the_familys_parsers(family):
    source, names = FAMILIES[family]
    assert recognised(source, find) == names


@pytest.mark.nightly_after(60)
@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_calls_are_read(family, arguments):
    calls = ARGUMENTS[arguments]
    if family in ONE_CALL and len(calls) > 1:
        pytest.skip("a message of this family has one call")
    assert outcome(FAMILIES[family].source, calls) == "right"


@pytest.mark.nightly_after(12)
@pytest.mark.parametrize("family", FAMILIES)
def test_published_tools_are_rendered_and_called(family):
    assert outcome(FAMILIES[family].source, SEARCH, PUBLISHED) == "right"


def test_public_templates(public_templates):
    found = {name: outcome(source, ONE) for name, source in public_templates.items()}
    wrong = {name: each for name, each in found.items() if each not in {"right", "none"}}
    num_right = list(found.values()).count("right")
    print(f"{num_right} right of {num_right + len(wrong)} that show calls; {len(found)} templates")
    assert num_right >= LEAST_RIGHT * (num_right + len(wrong)), wrong
