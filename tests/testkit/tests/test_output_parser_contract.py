"""The suite of output parsers, over the smallest right one and over broken ones."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import Phase

from tenonry_output_parsers.base import OutputParser
from tenonry_output_parsers.events import CallArguments, CallEnd, CallStart, TextDelta
from tenonry_testkit.held_text import held_characters
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.output_parser import Answer, OutputParserContract, cut

PHASES = (Phase.explicit, Phase.generate)  # what fails needs not be made small
START = "@@add("


class Shouted(OutputParser):
    """`@@add(ARGUMENTS)`: a call; its arguments are JSON without brackets of this kind."""

    reads_calls = True

    def __init__(self, context):
        super().__init__(context)
        self.held = ""
        self.is_open = False

    def feed(self, text, token_ids):
        events = []
        self.held += text
        while self.held:
            if not self._step(events):
                break
        return events

    def _step(self, events):
        if self.is_open:
            piece, end, self.held = self.held.partition(")")
            events.append(CallArguments(piece))
            if end:
                self._end(events)
            return True
        if not self.context.tools:
            events.append(TextDelta(self.held))
            self.held = ""
            return True
        before, start, after = self.held.partition(START)
        if start:
            events += [TextDelta(before), CallStart("add")]
            self.held, self.is_open = after, True
            return True
        kept = next((n for n in range(len(START) - 1, 0, -1) if self.held.endswith(START[:n])), 0)
        events.append(TextDelta(self.held[: len(self.held) - kept]))
        self.held = self.held[len(self.held) - kept :]
        return False

    def _end(self, events):
        events.append(CallEnd())
        self.is_open = False

    def close(self):
        events = [TextDelta(self.held)] if self.held else []
        self.held = ""
        if self.is_open:
            self._end(events)
        return events


class ShoutedContract(OutputParserContract):
    answers = (
        Answer("so @@ and @@add", (TextDelta("so @@ and @@add"),)),
        Answer(
            'I add.@@add({"a": 1}) and @@add({})!',
            (
                TextDelta("I add."), CallStart("add"), CallArguments('{"a": 1}'), CallEnd(),
                TextDelta(" and "), CallStart("add"), CallArguments("{}"), CallEnd(), TextDelta("!"),
            ),
        ),
    )  # fmt: skip
    max_held = 1 << 13


class TestShouted(ShoutedContract):
    output_parser = Shouted


class LeaksSplitMarkup(Shouted):
    caught_by = "test_events_are_the_same_one_character_at_a_time"

    def feed(self, text, token_ids):
        events = super().feed(text, token_ids)
        leaked, self.held = self.held, ""
        return [*events, TextDelta(leaked)]


class RepeatsArguments(Shouted):
    """Returns the arguments so far with each piece, as a parser does that reads everything again."""

    caught_by = "test_events_do_not_depend_on_how_the_text_is_cut"

    def __init__(self, context):
        super().__init__(context)
        self.so_far = ""

    def feed(self, text, token_ids):
        events = super().feed(text, token_ids)
        for place, event in enumerate(events):
            if isinstance(event, CallStart):
                self.so_far = ""
            elif isinstance(event, CallArguments):
                self.so_far += event.text
                events[place] = CallArguments(self.so_far)
        return events


class LosesWhatItHolds(Shouted):
    caught_by = "test_answers_mean_what_they_should"

    def close(self):
        self.held = ""
        return super().close()


class RaisesWhereTheAnswerIsCutOff(Shouted):
    caught_by = "test_any_end_is_an_end"

    def close(self):
        if self.is_open:
            raise ValueError("unterminated call")
        return super().close()


class LeavesCallsOpen(Shouted):
    caught_by = "test_any_end_is_an_end"

    def close(self):
        return [] if self.is_open else super().close()


class SharesItsState(Shouted):
    caught_by = "test_two_do_not_share_what_they_hold"
    pending: ClassVar = [""]

    @property
    def held(self):
        return self.pending[0]

    @held.setter
    def held(self, text):
        self.pending[0] = text


class CallsWithoutTools(Shouted):
    caught_by = "test_without_tools_there_are_no_calls"

    def __init__(self, context):
        super().__init__(type(context)((*context.tools, None), context.prompt))


class StripsText(Shouted):
    caught_by = "test_plain_text_is_text"

    def feed(self, text, token_ids):
        return super().feed(text.strip(), token_ids)


class KeepsTheWholeAnswer(Shouted):
    caught_by = "test_little_is_held"

    def __init__(self, context):
        super().__init__(context)
        self.all = []

    def feed(self, text, token_ids):
        self.all.append(text)
        return super().feed(text, token_ids)


class WaitsForTheEndOfACall(Shouted):
    """Holds all arguments until they are complete."""

    caught_by = "test_little_is_held"

    def _step(self, events):
        if self.is_open and ")" not in self.held:
            return False
        return super()._step(events)

    def close(self):
        events = [CallArguments(self.held)] if self.is_open else [TextDelta(self.held)]
        self.held = ""
        return events + super().close()


class LooksAtAllAgain(Shouted):
    caught_by = "test_work_grows_with_the_text_and_no_faster"

    def __init__(self, context):
        super().__init__(context)
        self.length = 0

    def feed(self, text, token_ids):
        self.length += len(text)
        for _ in range(self.length):
            pass
        return super().feed(text, token_ids)


class BreaksJSON(Shouted):
    caught_by = "test_arguments_of_answers_are_json"

    def _end(self, events):
        events.append(CallArguments("}"))
        super()._end(events)


class CallsWithinCalls(Shouted):
    caught_by = "test_any_end_is_an_end"

    def _end(self, events):
        events += [CallStart("add"), CallEnd()]
        super()._end(events)


BROKEN = [cls for cls in Shouted.__subclasses__() if "caught_by" in vars(cls)]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda cls: cls.__name__)
@pytest.mark.broken("output_parser")
def test_the_suite_catches(broken):
    class Suite(ShoutedContract):
        output_parser = broken
        phases = PHASES

    assert broken.caught_by in failing_tests(Suite, [broken.caught_by])


def test_there_are_many_broken_ones():
    assert len(BROKEN) >= 12


def test_a_suite_that_names_nothing_says_so():
    with pytest.raises(TypeError, match="output_parser = "):
        OutputParserContract().parser_class()


def test_text_is_found_in_attributes_closures_and_generators():
    def waiting():
        text = "a" * 3
        yield
        assert text

    generator = waiting()
    next(generator)
    held = ["d" * 5]

    class Thing:
        def __init__(self):
            self.steps = generator
            self.call = lambda: held

    assert held_characters(Thing()) >= 8


def test_a_text_is_cut_into_all_its_pieces():
    assert list(cut("abc", [1, 1, 7])) == ["a", "", "bc", ""]
