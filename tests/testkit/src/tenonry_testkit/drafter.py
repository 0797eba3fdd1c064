"""The conformance suite of drafters: each line of their contract is a test. Test process.

from tenonry_testkit.drafter import DrafterContract

class TestMine(DrafterContract):
    drafter = "my_package:MyDrafter"
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from tenonry.config import EngineConfig, PluginChoice
from tenonry.plugin.manager import resolve_point
from tenonry.sampling_params import SamplingParams
from tenonry.step import NewRow
from tenonry_drafters.base import Drafter, DrafterContext
from tenonry_drafters.models import DraftModels
from tenonry_drafters.points import DRAFTERS, build_drafter
from tenonry_testkit.fakes.draft_models import FakeDraftModels
from tenonry_testkit.fakes.model import fake_model

VOCAB_SIZE = 50
MAX_NUM_SEQS = 4
MAX_MODEL_LEN = 512
MAX_DRAFTS = 7
NUM_TURNS = 60

I32 = NDArray[np.int32]


class Text(NamedTuple):
    """A request: its prompt, and the model's predetermined output."""

    prompt: list[int]
    output: list[int]


def repeating(seed: int) -> Text:
    """Text that quotes itself, with mistakes."""
    draw = random.Random(seed)
    phrase = [draw.randrange(VOCAB_SIZE) for _ in range(draw.randrange(1, 12))]
    tokens = [
        token if draw.random() > 0.05 else draw.randrange(VOCAB_SIZE) for token in phrase * 200
    ]
    return _cut(tokens, draw)


def scattered(seed: int) -> Text:
    """Tokens without any pattern."""
    draw = random.Random(seed)
    return _cut([draw.randrange(VOCAB_SIZE) for _ in range(400)], draw)


def single(token: int) -> Text:
    """One repeated token, after a prompt of one."""
    return Text([token], [token] * 300)


def _cut(tokens: list[int], draw: random.Random) -> Text:
    end = draw.randrange(1, 60)
    return Text(tokens[:end], tokens[end : MAX_MODEL_LEN - 8])


TEXTS = (*map(repeating, range(8)), *map(scattered, range(4)), single(0), single(VOCAB_SIZE - 1))


class Played:
    """One row of a run: its text, and the number of known tokens."""

    def __init__(self, drafter: Drafter, row: int, text: Text) -> None:
        self.drafter = drafter
        self.row = row
        self.tokens = [*text.prompt, *text.output]
        self.prompt = text.prompt
        self.length = len(text.prompt)

    def enter(self) -> None:
        """Start, or resume after preemption with the tokens so far."""
        new = NewRow(
            row=self.row,
            handle=self.row + 1,
            token_ids=np.array(self.tokens[: self.length], np.int32),
            num_computed=0,
            num_output=self.length - len(self.prompt),
            block_ids=(),
            sampling=SamplingParams(),
        )
        self.drafter.enter(new)

    @property
    def history(self) -> I32:
        tokens = np.array(self.tokens[: self.length], np.int32)
        tokens.flags.writeable = False
        return tokens

    def take(self, guess: I32) -> None:
        """Verify the guess: append its tokens, and report the result to the drafter."""
        right = 0
        while right < len(guess) and guess[right] == self.tokens[self.length + right]:
            right += 1
        self.length += right + 1
        if len(guess):
            self.drafter.accept(self.row, len(guess), right)


class DrafterContract:
    """Subclass in a test module and name the `drafter`; `options` are its own. A drafter that needs models receives
    one, by the name `fake`; `models` may provide others.
    """

    drafter: ClassVar[str | type[Drafter] | None] = None
    options: ClassVar[dict[str, Any]] = {}

    # ------------------------------------------------------------------ tools, for tests of your own
    def build(self) -> Drafter:
        """A fresh drafter, as a worker builds it."""
        name = self.drafter
        if name is None:
            raise TypeError(
                'this suite names nothing to test; add the line:  drafter = "my_package:MyDrafter"'
            )
        if not isinstance(name, str):
            name = f"{name.__module__}:{name.__qualname__}"
        choice = PluginChoice(name=name, options=self.options)
        if isinstance(self.drafter, str):
            found, record = resolve_point(DRAFTERS, choice)
            return build_drafter(found, record, self.context(choice))
        return self.drafter(self.context(choice))  # type: ignore[misc] - None was rejected

    def context(self, choice: PluginChoice) -> DrafterContext:
        return DrafterContext(
            EngineConfig(model="fake", drafter=choice),
            fake_model(),
            vocab_size=VOCAB_SIZE,
            max_num_seqs=MAX_NUM_SEQS,
            max_model_len=MAX_MODEL_LEN,
            max_drafts=MAX_DRAFTS,
            models=self.models(),
        )

    def models(self) -> DraftModels:
        """Factory of draft models."""
        return FakeDraftModels(VOCAB_SIZE, MAX_MODEL_LEN)

    def propose(self, drafter: Drafter, played: Sequence[Played], most: int) -> list[I32]:
        """Call the drafter as a worker does, and check the result's shape."""
        histories = [each.history for each in played]
        before = [history.copy() for history in histories]
        rows = [each.row for each in played]
        found = drafter.propose(rows, histories, [most] * len(rows))
        num_found = len(found)
        num_rows = len(rows)
        text = f"propose() answered {num_found} arrays for {num_rows} rows"
        assert num_found == num_rows, text
        for history, was in zip(histories, before, strict=True):
            assert np.array_equal(history, was), "a history was changed"
        for ids in found:
            array = np.asarray(ids)
            assert array.ndim == 1, f"a guess has {array.ndim} dimensions; expected one"
            assert len(array) <= most, f"{len(array)} ids were guessed; at most {most} were wanted"
            is_integer = array.size == 0 or np.issubdtype(array.dtype, np.integer)
            assert is_integer, f"ids are {array.dtype}; expected integers"
            outside = [int(token) for token in array if not 0 <= token < VOCAB_SIZE]
            assert not outside, f"ids {outside} are not in the vocabulary of {VOCAB_SIZE}"
        return [np.asarray(ids, np.int32).copy() for ids in found]

    def alone(self, text: Text, row: int = 0) -> list[list[int]]:
        """Guesses of a fresh drafter for one text, turn by turn."""
        drafter = self.build()
        played = Played(drafter, row, text)
        played.enter()
        guesses = []
        for turn in range(NUM_TURNS):
            if played.length + MAX_DRAFTS + 1 >= len(played.tokens):
                break
            most = 1 + turn % MAX_DRAFTS
            (guess,) = self.propose(drafter, [played], most)
            guesses.append(guess.tolist())
            played.take(guess)
        drafter.leave(row)
        return guesses

    # ------------------------------------------------------------------ the contract
    def test_it_can_be_built_from_its_name(self) -> None:
        drafter = self.build()
        assert isinstance(drafter, Drafter)
        assert isinstance(drafter.needs, frozenset)

    @pytest.mark.parametrize("number", range(len(TEXTS)))
    def test_guesses_are_few_enough_and_in_the_vocabulary(self, number: int) -> None:
        self.alone(TEXTS[number])

    def test_a_history_of_one_token_is_enough(self) -> None:
        drafter = self.build()
        played = Played(drafter, 0, Text([3], [4] * 20))
        played.enter()
        self.propose(drafter, [played], MAX_DRAFTS)

    @pytest.mark.parametrize("number", [0, 9])
    def test_the_same_calls_give_the_same_guesses(self, number: int) -> None:
        """Failures are reproducible."""
        assert self.alone(TEXTS[number]) == self.alone(TEXTS[number])

    def test_a_row_depends_on_no_other(self) -> None:
        """Other rows belong to other users: timing must not reveal their contents."""
        texts = TEXTS[:MAX_NUM_SEQS]
        expected = [self.alone(text, row) for row, text in enumerate(texts)]
        drafter = self.build()
        played = [Played(drafter, row, text) for row, text in enumerate(texts)]
        for each in played:
            each.enter()
        found: list[list[list[int]]] = [[] for _ in texts]
        for turn in range(NUM_TURNS):
            order = list(range(len(texts)))
            random.Random(turn).shuffle(order)
            going = [row for row in order if turn < len(expected[row])]
            if not going:
                break
            most = 1 + turn % MAX_DRAFTS
            asked = [played[row] for row in going]
            guesses = self.propose(drafter, asked, most)
            for row, guess in zip(going, guesses, strict=True):
                found[row].append(guess.tolist())
                played[row].take(guess)
        assert found == expected, "a row was guessed otherwise beside others than alone"

    @pytest.mark.parametrize("leaves", [True, False])
    def test_a_row_that_is_filled_anew_knows_nothing_of_the_former(self, leaves: bool) -> None:
        text = TEXTS[1]
        expected = self.alone(text)
        drafter = self.build()
        for former in TEXTS[2:6]:
            played = Played(drafter, 0, former)
            played.enter()
            for _ in range(10):
                (guess,) = self.propose(drafter, [played], MAX_DRAFTS)
                played.take(guess)
            if leaves:
                drafter.leave(0)
        played = Played(drafter, 0, text)
        played.enter()
        found = []
        for turn in range(len(expected)):
            most = 1 + turn % MAX_DRAFTS
            (guess,) = self.propose(drafter, [played], most)
            found.append(guess.tolist())
            played.take(guess)
        assert found == expected, "what a former request said was guessed for another"

    @pytest.mark.parametrize("number", [0, 5, 10])
    def test_rows_may_come_back_and_go_on_unasked(self, number: int) -> None:
        """Tokens arrive without drafts, and preempted rows enter again."""
        drafter = self.build()
        played = Played(drafter, 2, TEXTS[number])
        played.enter()
        draw = random.Random(number)
        while played.length + 4 * MAX_DRAFTS < len(played.tokens):
            most = 1 + draw.randrange(MAX_DRAFTS)
            (guess,) = self.propose(drafter, [played], most)
            played.take(guess)
            played.length += draw.randrange(2 * MAX_DRAFTS)
            if draw.random() < 0.2:
                drafter.leave(2)
                played.enter()

    def test_guesses_may_be_cut_before_they_are_verified(self) -> None:
        """A grammar allows fewer; `accept` then receives the number of verified ones."""
        drafter = self.build()
        played = Played(drafter, 1, TEXTS[0])
        played.enter()
        for _ in range(20):
            (guess,) = self.propose(drafter, [played], MAX_DRAFTS)
            played.take(guess[: len(guess) // 2])
