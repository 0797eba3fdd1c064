"""Conversations with calls, a chat template's turn for a call, and the result of the chosen parsers."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tenonry.errors import RequestError
from tenonry.plugin.manager import resolve_point
from tenonry_io_text.chat import ChatRenderer
from tenonry_openai_server.points import OUTPUT_PARSERS
from tenonry_output_parsers.auto import recognised
from tenonry_output_parsers.base import OutputParser, ParserContext, Tool
from tenonry_output_parsers.chain import Chain
from tenonry_output_parsers.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    ReasoningDelta,
    TextDelta,
    joined,
)

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
USER = "How warm will it be?"
RESULT = "Result77"
PLAIN = "Plain88"
THOUGHT = "Let me see."
# Tokens that servers hide and templates print: of roles, and of the ends of messages.
TOKEN = re.compile(
    r"<\|[A-Za-z0-9_]+\|>|<｜[A-Za-z▁]+｜>|</?s>|<eos>|<bos>|<end_of_turn>|<start_of_turn>|<turn\|>|<\|turn>"
    r"|<\|tool_response>|\[\|[a-z]+\|\]|\[e~\[|\]~b\]|<SPECIAL_\d+>|<seed:[be]os>|\[/?INST\]|<end_of_sentence>"
)


class Called(NamedTuple):
    """A call: the function and its arguments."""

    name: str
    arguments: dict[str, Any]


class Turn(NamedTuple):
    """Output that a model would have written, and the prompt before it."""

    prompt: str
    text: str


class Reading(NamedTuple):
    """Result of parsers for an answer."""

    calls: list[Called]
    text: str
    reasoning: str


def _property(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "description": "A value.", **more}


def function(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    """A tool as requests offer it."""
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    body = {"name": name, "description": f"Runs {name}.", "parameters": parameters}
    return {"type": "function", "function": body}


TOOLS = [
    function(
        "get_weather",
        {
            "city": _property("string"),
            "days": _property("integer"),
            "exact": _property("boolean"),
            "tags": _property("array", items={"type": "string"}),
            "more": _property("object", properties={"a": _property("number")}),
        },
    ),
    function("add", {"a": _property("integer"), "b": _property("integer")}),
]
ONE = (Called("get_weather", {"city": "Köln am Rhein", "days": 3}),)
TWO = (*ONE, Called("add", {"a": 17, "b": -25}))
NESTED = (
    Called("get_weather", {"city": "Rom", "exact": True, "tags": ["x y", "z"], "more": {"a": 1.5}}),
)
QUOTED = (Called("get_weather", {"city": 'Köln "am" Rhein\n<b>', "days": 3}),)
ARGUMENTS = {"one": ONE, "two": TWO, "nested": NESTED, "quoted": QUOTED}


def for_parsers(tools: Sequence[dict[str, Any]]) -> tuple[Tool, ...]:
    """Tools in the form of parsers."""
    functions = [tool["function"] for tool in tools]
    return tuple(Tool(each["name"], each["parameters"]) for each in functions)


def rendered(source: str, messages: Any, **kwargs: Any) -> str | None:
    """The prompt; None if the template, or our renderer, rejects the messages."""
    renderer = ChatRenderer({"default": source}, SPECIAL, max_chars=1 << 21, max_messages=64)
    try:
        return renderer.render(messages, **kwargs)
    except RequestError:
        return None


def _message(calls: Sequence[Called], ids: Sequence[str]) -> dict[str, Any]:
    entries = [
        {
            "id": call_id,
            "type": "function",
            "function": {
                "name": call.name,
                "arguments": json.dumps(call.arguments, ensure_ascii=False),
            },
        }
        for call, call_id in zip(calls, ids, strict=True)
    ]
    return {"role": "assistant", "content": "", "tool_calls": entries}


def _ids(calls: Sequence[Called]) -> Iterator[list[str]]:
    """Ids in the forms that templates accept: with the function's name, and of nine letters."""
    yield [f"functions.{call.name}:{place}" for place, call in enumerate(calls)]
    yield [f"abcdefgh{place}" for place in range(len(calls))]


def turn_of(
    source: str, calls: Sequence[Called], hidden: Sequence[str], tools: Any = TOOLS
) -> Turn | None:
    """Turn in which a template shows these calls; None if it shows none. `hidden`: markers, which are kept."""
    user = {"role": "user", "content": USER}
    settings = ({}, {"chat_template_kwargs": {"enable_thinking": False}})
    for offered, ids, kwargs in itertools.product((tools, None), _ids(calls), settings):
        prompt = rendered(source, [user], tools=offered, add_generation_prompt=True, **kwargs)
        if prompt is None or USER not in prompt:
            continue
        results = [
            {"role": "tool", "content": RESULT, "tool_call_id": each, "name": call.name}
            for each, call in zip(ids, calls, strict=True)
        ]
        for messages in ([], results):
            whole = rendered(
                source,
                [user, _message(calls, ids), *messages],
                tools=offered,
                add_generation_prompt=False,
                **kwargs,
            )
            plain = rendered(source, [user, {"role": "assistant", "content": PLAIN}], **kwargs)
            turn = _turn(prompt, whole or "", plain or "", hidden)
            if turn is not None and all(call.name in turn.text for call in calls):
                return turn
    return None


def _turn(prompt: str, whole: str, plain: str, kept: Sequence[str]) -> Turn | None:
    """Text after the user's message in the whole, without the prompt's end and without tokens of roles."""
    if USER not in whole:
        return None
    lead = prompt.rpartition(USER)[2]
    text = whole.rpartition(USER)[2].partition(RESULT)[0]
    common = _common(lead, text)
    if len(common) < len(lead) and lead.strip() and text.lstrip().startswith(lead.strip()):
        text = text.lstrip().removeprefix(lead.strip())
    else:
        opened = max(common.rfind("<"), common.rfind("["))
        cut = opened if opened > max(common.rfind(">"), common.rfind("]")) else len(common)
        text = text[cut if len(common) < len(lead) else len(common) :]
    end = plain.rpartition(PLAIN)[2]
    tokens = [token for token in TOKEN.findall(end) if token not in kept]
    if tokens:
        text = text.partition(tokens[0])[0]
    shown = TOKEN.sub(lambda found: found[0] if found[0] in kept else "", text)
    return Turn(prompt, shown)


def _common(first: str, second: str) -> str:
    """Common prefix of both texts."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return "".join(one for one, _ in pairs)


def find(name: str) -> type[OutputParser]:
    """The parser of that name."""
    found: type[OutputParser] = resolve_point(OUTPUT_PARSERS, name)[0]
    return found


def parsers_of(source: str) -> list[type[OutputParser]]:
    """The classes that `auto` chooses for a template."""
    return [find(name) for name in recognised(source, find)]


def markers_of(parsers: Sequence[type[OutputParser]]) -> list[str]:
    """The special tokens that parsers see."""
    return [marker for parser in parsers for marker in parser.markers]


def events_of(
    parsers: Sequence[type[OutputParser]], turn: Turn, pieces: Sequence[str], tools: Any = TOOLS
) -> list[Event]:
    """Events of the parsers for a turn that arrives in these pieces."""
    context = ParserContext(for_parsers(tools), turn.prompt[-512:])
    chain = Chain([parser(context) for parser in parsers])
    events = [event for piece in pieces for event in chain.feed(piece, (0,))]
    return joined([*events, *chain.close()])


def reading_of(events: Sequence[Event]) -> Reading:
    """Calls with their arguments as values, and texts. Raises ValueError for arguments that are no JSON."""
    found: list[tuple[str, str]] = []
    texts: dict[type[Event], str] = {TextDelta: "", ReasoningDelta: ""}
    for event in events:
        if isinstance(event, CallStart):
            found.append((event.name, ""))
        elif isinstance(event, CallArguments):
            found[-1] = (found[-1][0], found[-1][1] + event.text)
        elif not isinstance(event, CallEnd):
            texts[type(event)] += event.text
    calls = [Called(name, json.loads(arguments)) for name, arguments in found]
    return Reading(calls, texts[TextDelta].strip(), texts[ReasoningDelta].strip())


def with_reasoning(parsers: Sequence[type[OutputParser]], turn: Turn) -> Turn:
    """The turn with the end of the reasoning, where the prompt has begun it and the turn does not end it."""
    context = ParserContext((), turn.prompt[-512:])
    for parser in parsers:
        end = parser.ends_reasoning
        if end and end not in turn.text and parser(context).begins_in_reasoning:
            return turn._replace(text=f"{THOUGHT}{end}{turn.text}")
    return turn
