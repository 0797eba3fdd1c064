"""The conformance suite of output parsers: events depend only on the text (SO-2). Test process.

from tenonry_testkit.output_parser import Answer, OutputParserContract

class TestMine(OutputParserContract):
    output_parser = "my_package:MyParser"
    answers = (Answer("a text", (TextDelta("a text"),)), …)
"""

from __future__ import annotations

import itertools
import json
import string
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import hypothesis.strategies as st
from hypothesis import Phase

from tenonry.info import PluginRecord
from tenonry.plugin import Point
from tenonry.plugin.checks import check_plugin
from tenonry.plugin.manager import resolve_point
from tenonry_output_parsers.base import OutputParser, ParserContext, Tool
from tenonry_output_parsers.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    TextDelta,
    joined,
)
from tenonry_testkit.held_text import held_characters
from tenonry_testkit.search import PHASES, effort, search

MARKUP = str.maketrans("", "", "<[{@")
POINT = Point("tenonry.output_parsers", OutputParser)
TOOLS = (
    Tool(
        "add",
        {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    ),
    Tool("say", {"type": "object", "properties": {"text": {"type": "string"}}}),
)
WORDS = (*string.ascii_letters, *string.punctuation.translate(MARKUP), *4 * (" ", "\n", "is "))
UNITS = ("a", " ", "\n", "<", "[", "{", '"', "\\", '{"', "</", '":')
PIECE = 2048
MOST_BEGINNINGS = 14  # of answers, in the tests of endless text
LEAST_BEGINNINGS = 5  # for any effort
BASE_WORK = 400  # characters for the base measurement of work


class Answer(NamedTuple):
    """A complete answer of a model, its events, and the end of the preceding prompt."""

    text: str
    events: tuple[Event, ...]
    prompt: str = ""


class OutputParserContract:
    """Subclass in a test module; name the `output_parser` and `answers` of its format, calls and unusual ones included.

    `tools` are those of the requests: `add(a: integer, b: integer)` and `say(text: string)` by default. `max_held`:
    maximum characters held by the parser. `effort` multiplies the number of examples.
    """

    output_parser: ClassVar[str | type[OutputParser] | None] = None
    answers: ClassVar[Sequence[Answer]] = ()
    tools: ClassVar[tuple[Tool, ...]] = TOOLS
    max_held: ClassVar[int] = 1 << 17
    effort: ClassVar[float] = 1.0
    phases: ClassVar[Sequence[Phase]] = PHASES
    _checked: ClassVar[tuple[Any, type[OutputParser]]]

    # ------------------------------------------------------------------ tools, for tests of your own
    @classmethod
    def parser_class(cls) -> type[OutputParser]:
        """Return the class, found and checked once per suite, like a server."""
        known = cls.__dict__.get("_checked")
        if known is None or known[0] is not cls.output_parser:
            cls._checked = (cls.output_parser, cls._check())
        return cls._checked[1]

    @classmethod
    def _check(cls) -> type[OutputParser]:
        target = cls.output_parser
        if target is None:
            raise TypeError(
                'this suite names nothing to test; add the line:  output_parser = "my_package:MyParser"'
            )
        if isinstance(target, str):
            found: type[OutputParser] = resolve_point(POINT, target)[0]
            return found
        record = PluginRecord(POINT.kind, target.__name__, f"{target.__module__}:{target.__name__}")
        check_plugin(target, record, POINT)
        return target

    def build(self, prompt: str = "", *, with_tools: bool = True) -> OutputParser:
        """Build a fresh parser like the server, for one completion."""
        return self.parser_class()(ParserContext(self.tools if with_tools else (), prompt))

    def read(
        self, pieces: Iterable[str], prompt: str = "", *, with_tools: bool = True
    ) -> list[Event]:
        """Parse an answer in these pieces; returns all events."""
        parser = self.build(prompt, with_tools=with_tools)
        events = [event for piece in pieces for event in parser.feed(piece, [0])]
        return joined([*events, *parser.close()])

    def _search(
        self, strategy: st.SearchStrategy[Any], check: Callable[[Any], object], examples: int = 40
    ) -> None:
        search(strategy, check, max(1, round(examples * self.effort)), self.phases)

    def _texts(self) -> st.SearchStrategy[tuple[str, str]]:
        """Draw (text, prompt): an answer, a part of one, or pieces of several mixed with adversarial text."""
        answers = st.sampled_from([(answer.text, answer.prompt) for answer in self.answers])
        spans = st.tuples(answers, st.integers(0, 200), st.integers(1, 60)).map(
            lambda drawn: drawn[0][0][drawn[1] % len(drawn[0][0]) :][: drawn[2]]
        )
        markers = st.sampled_from([*self.parser_class().markers, *UNITS, "\ud7ff", "é", "🦊"])
        mixed = st.lists(spans | markers, max_size=12).map("".join)
        prompts = st.sampled_from(sorted({answer.prompt for answer in self.answers}))
        return answers | st.tuples(mixed, prompts)

    # ------------------------------------------------------------------ the contract
    def test_it_is_a_parser_that_the_server_accepts(self) -> None:
        """It resolves, implements the interface in a version that the server drives, and can be built."""
        assert isinstance(self.build(), OutputParser)
        assert self.answers, "this suite has no answers: give some of the format, with their events"

    def test_answers_mean_what_they_should(self) -> None:
        """Each complete answer produces the events named by the suite."""
        for answer in self.answers:
            found = self.read([answer.text], answer.prompt)
            assert found == list(answer.events), f"{answer.text!r} gave {found}"

    def test_events_do_not_depend_on_how_the_text_is_cut(self) -> None:
        """Any text, also a malformed one, produces the same events in pieces as at once."""

        def check(drawn: tuple[tuple[str, str], list[int]]) -> None:
            (text, prompt), cuts = drawn
            whole = self.read([text], prompt)
            pieces = list(cut(text, cuts))
            found = self.read(pieces, prompt)
            assert found == whole, f"{pieces} gave {found}, the whole text {whole}"

        cuts = st.lists(st.integers(0, 300), max_size=8)
        self._search(st.tuples(self._texts(), cuts), check, 100)

    def test_events_are_the_same_one_character_at_a_time(self) -> None:
        """The finest division, with empty pieces."""

        def check(drawn: tuple[str, str]) -> None:
            text, prompt = drawn
            whole = self.read([text], prompt)
            found = self.read(itertools.chain.from_iterable(("", each) for each in text), prompt)
            assert found == whole, f"{text!r} gave {found} by characters, as a whole {whole}"

        for answer in self.answers:
            check((answer.text, answer.prompt))
        self._search(self._texts(), check, 40)

    def test_arguments_of_answers_are_json(self) -> None:
        """The joined arguments of each call parse; those of a stream equal those of the complete answer."""
        for answer in self.answers:
            whole = calls_of(self.read([answer.text], answer.prompt))
            streamed = calls_of(self.read(answer.text, answer.prompt))
            assert streamed == whole
            for _, arguments in whole:
                json.loads(arguments)

    def test_any_end_is_an_end(self) -> None:
        """A truncated answer raises nothing, and every started call ends, once."""
        for answer in self.answers:
            for end in range(len(answer.text)):
                check_order(self.read([answer.text[:end]], answer.prompt))
        self._search(self._texts(), lambda drawn: check_order(self.read([drawn[0]], drawn[1])))

    def test_plain_text_is_text(self) -> None:
        """Without markup the events are exactly the text."""
        plain = st.lists(st.sampled_from(WORDS), max_size=20).map("".join)

        def check(text: str) -> None:
            expected = [TextDelta(text)] if text else []
            found = self.read([text])
            assert found == expected, f"{text!r} gave {found}"

        self._search(plain, check, 30)

    def test_without_tools_there_are_no_calls(self) -> None:
        """A request without functions, or with calls forbidden, receives none."""

        def check(drawn: tuple[str, str]) -> None:
            found = self.read([drawn[0]], drawn[1], with_tools=False)
            assert not calls_of(found), f"{drawn[0]!r} gave {found} though there are no tools"

        for answer in self.answers:
            check((answer.text, answer.prompt))
        self._search(self._texts(), check, 20)

    def test_two_do_not_share_what_they_hold(self) -> None:
        """Interleaved completions do not affect each other."""
        for answer in self.answers:
            alone = self.read([answer.text], answer.prompt)
            parsers = [self.build(answer.prompt) for _ in range(2)]
            found: list[list[Event]] = [[], []]
            for character in answer.text:
                for number, parser in enumerate(parsers):
                    found[number] += parser.feed(character, [0])
            for events, parser in zip(found, parsers, strict=True):
                assert joined([*events, *parser.close()]) == alone

    def test_little_is_held(self) -> None:
        """For any continuation of an answer, the parser holds at most `max_held` characters of it."""
        for text, prompt, unit in self._endless():
            parser = self.build(prompt)
            parser.feed(text, [0])
            for _ in range(2 * self.max_held // PIECE):
                parser.feed(unit * (PIECE // len(unit)), [0])
            held = held_characters(parser)
            assert held <= self.max_held, (
                f"after {text!r} and many of {unit!r} it holds {held} characters; "
                f"allowed are {self.max_held}"
            )
            parser.close()

    def test_work_grows_with_the_text_and_no_faster(self) -> None:
        """Four times the text is about four times the work, counted in lines of code."""
        for text, prompt, unit in self._endless():
            little = self._work(text, prompt, unit, BASE_WORK)
            much = self._work(text, prompt, unit, 4 * BASE_WORK)
            assert much <= 6 * little + 1000, (
                f"after {text!r}, {BASE_WORK} characters of {unit!r} took {little} lines, "
                f"four times as many took {much}"
            )

    def _endless(self) -> Iterator[tuple[str, str, str]]:
        """Yield (beginning of an answer, its prompt, repeated text)."""
        beginnings = [
            (answer.text[:end], answer.prompt)
            for answer in self.answers
            for end in range(0, len(answer.text) + 1, max(1, len(answer.text) // 6))
        ]
        step = -(-len(beginnings) // MOST_BEGINNINGS)
        units = itertools.cycle(UNITS)
        found = [(text, prompt, next(units)) for text, prompt in beginnings[::step]]
        few = max(LEAST_BEGINNINGS, round(MOST_BEGINNINGS * effort()))
        yield from found[:: max(1, len(found) // few)]

    def _work(self, text: str, prompt: str, unit: str, size: int) -> int:
        parser = self.build(prompt)
        parser.feed(text, [0])
        lines = 0

        def count(frame: Any, event: str, argument: Any) -> Any:
            nonlocal lines
            lines += event == "line"
            return count

        before = sys.gettrace()
        sys.settrace(count)
        try:
            for start in range(0, size, 8):
                parser.feed((unit * 8)[start % 8 :][:8], [0])
            parser.close()
        finally:
            sys.settrace(before)
        return lines


def cut(text: str, cuts: Iterable[int]) -> Iterator[str]:
    """Yield the text in pieces that end at `cuts`, modulo its length; equal ones make empty pieces."""
    places = sorted(place % (len(text) + 1) for place in cuts)
    for start, end in itertools.pairwise([0, *places, len(text)]):
        yield text[start:end]


def calls_of(events: Iterable[Event]) -> list[tuple[str, str]]:
    """(name, arguments) of each call."""
    calls: list[tuple[str, str]] = []
    for event in events:
        if isinstance(event, CallStart):
            calls.append((event.name, ""))
        elif isinstance(event, CallArguments):
            name, arguments = calls[-1]
            calls[-1] = (name, arguments + event.text)
    return calls


def check_order(events: Iterable[Event]) -> None:
    """Raise AssertionError unless calls alternate between begin and end, with only arguments in between."""
    is_open = False
    for event in events:
        if isinstance(event, CallStart):
            assert not is_open, "a call began within another"
            is_open = True
        elif isinstance(event, CallEnd):
            assert is_open, "a call ended that had not begun"
            is_open = False
        else:
            assert is_open == isinstance(event, CallArguments), (
                f"{event} stands {'within' if is_open else 'outside of'} a call"
            )
    assert not is_open, "a call began and did not end"
