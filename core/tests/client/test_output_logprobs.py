"""Log-probabilities of sampled tokens and of prompts reach their requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tenonry.sampling_params import OutputKind
from tenonry.step import PromptLogprobs
from tenonry_testkit.kernel.output_frames import (
    EnginelessFrontEnd,
    frame,
    logprobs,
    take,
    take_first,
)


class TestLogprobs:
    def test_the_sampled_token_comes_first_then_the_likeliest_asked_for(self):
        front = EnginelessFrontEnd()
        stream = front.open(logprobs=2)
        front.receive({1: "b"}, logprobs=logprobs([0], [[98, 97, 99, 100]]))
        (entry,) = take_first(stream).logprobs or []
        assert list(entry) == [98, 97, 99]
        assert entry[98].logprob == 0.0
        assert entry[98].rank == 1
        assert entry[98].decoded_token == "b"
        assert entry[97].logprob == -1.0
        assert entry[97].rank == 1
        assert entry[97].decoded_token == "a"
        assert entry[99].rank == 2

    def test_a_sampled_token_among_the_likeliest_is_named_once(self):
        front = EnginelessFrontEnd()
        stream = front.open(logprobs=2)
        front.receive({1: "a"}, logprobs=logprobs([0], [[97, 97, 98]]))
        (entry,) = take_first(stream).logprobs or []
        assert list(entry) == [97, 98]

    def test_only_for_those_who_asked(self):
        front = EnginelessFrontEnd()
        plain, asked = front.open("plain"), front.open("asked", logprobs=0)
        front.receive({1: "a", 2: "b"}, logprobs=logprobs([0, 1], [[97, 98], [98, 97]]))
        assert take_first(plain).logprobs is None
        assert [list(entry) for entry in take_first(asked).logprobs or []] == [[98]]

    @pytest.mark.parametrize("kind", [OutputKind.CUMULATIVE, OutputKind.DELTA])
    def test_there_is_one_entry_per_token_whenever_they_are_taken(self, kind):
        """A take between the arrival of a frame and its detokenisation must not tear the two apart."""
        front = EnginelessFrontEnd()
        stream = front.open(logprobs=0, output_kind=kind)
        front.receive({1: "a"}, logprobs=logprobs([0], [[97]]))
        front.outputs.absorb(frame({1: "b"}, logprobs=logprobs([0], [[98]])))
        outputs = [take_first(stream)]
        front.outputs.flush()
        outputs.append(take_first(stream))
        for output in outputs:
            assert [next(iter(entry)) for entry in output.logprobs or []] == output.token_ids
        assert outputs[-1].token_ids == ([98] if kind == OutputKind.DELTA else [97, 98])

    def test_what_lies_behind_a_stop_string_is_dropped_with_its_token(self):
        front = EnginelessFrontEnd()
        stream = front.open(logprobs=0, stop="ab")
        for token in (97, 98, 99):
            front.outputs.absorb(frame({1: [token]}, logprobs=logprobs([0], [[token]])))
        front.outputs.flush()
        output = take_first(stream)
        assert (output.token_ids, len(output.logprobs or [])) == ([97, 98], 2)

    def test_of_the_prompt_with_nothing_for_the_first_token(self):
        front = EnginelessFrontEnd()
        stream = front.open(prompt="abc", prompt_logprobs=1)
        part = PromptLogprobs(
            0,
            1,
            np.array([[98, 99], [99, 98]], np.int32),
            np.zeros((2, 2), np.float32),
            np.array([1, 2], np.int32),
        )
        front.receive({1: "x"}, prompt_logprobs=[part], prompt_logprobs_handles=[1])
        found = take(stream).prompt_logprobs
        assert found is not None
        assert found[0] is None
        assert [list(entry) for entry in found[1:] if entry] == [[98, 99], [99, 98]]

    def test_a_preempted_request_computes_those_of_its_prompt_again(self):
        front = EnginelessFrontEnd()
        stream = front.open(prompt="abcd", prompt_logprobs=0)

        def part(start: int, *ids: int) -> dict[str, Any]:
            columns = np.array([ids], np.int32).T
            made = PromptLogprobs(
                0, start, columns, columns.astype(np.float32), np.ones(len(ids), np.int32)
            )
            return {"prompt_logprobs": [made], "prompt_logprobs_handles": [1]}

        front.receive({}, **part(1, 98, 99))
        front.receive({}, **part(1, 98))
        front.receive({1: "x"}, **part(2, 99, 100))
        found = take(stream).prompt_logprobs
        assert found is not None
        assert [next(iter(entry)) for entry in found[1:] if entry] == [98, 99, 100]
