"""Engine outputs become streams: text, kinds of output, several completions (AF-5, AF-6)."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenonry.errors import EngineDeadError
from tenonry.outputs import FinishReason, RequestOutput
from tenonry.sampling_params import OutputKind
from tenonry_testkit.kernel.output_frames import EnginelessFrontEnd, end, take, take_first


class TestText:
    def test_tokens_become_text(self):
        front = EnginelessFrontEnd()
        stream = front.open()
        front.receive({1: "Hel"})
        front.receive({1: "lo"}, [end(1)])
        output = take(stream)
        assert output.request_id == "r"
        assert output.prompt == "hi"
        assert output.prompt_token_ids == [104, 105]
        assert output.outputs[0].text == "Hello"
        assert output.outputs[0].token_ids == list(b"Hello")
        assert (output.finished, output.outputs[0].finish_reason) == (True, "length")
        assert len(front.outputs) == 0

    def test_half_a_character_waits_for_the_rest(self):
        front = EnginelessFrontEnd()
        stream = front.open(output_kind=OutputKind.DELTA)
        first, second = "ä".encode()
        front.receive({1: [first]})
        assert (take_first(stream).text, stream.take()) == ("", None)
        front.receive({1: [second]})
        assert take_first(stream).text == "ä"

    def test_what_is_held_back_comes_with_the_end(self):
        front = EnginelessFrontEnd()
        stream = front.open(stop="end", output_kind=OutputKind.DELTA)
        front.receive({1: "the en"})
        assert take_first(stream).text == "the "
        front.receive({}, [end(1)])
        assert take_first(stream).text == "en"

    def test_without_an_io_processor_there_are_only_ids(self):
        front = EnginelessFrontEnd(None)
        stream = front.open(prompt=[1, 2])
        front.receive({1: [7, 8]}, [end(1)])
        assert (take_first(stream).text, stream.prompt) == ("", None)

    def test_nothing_is_detokenised_without_need(self):
        front = EnginelessFrontEnd()
        stream = front.open(detokenize=False)
        front.receive({1: "x"}, [end(1)])
        assert (take_first(stream).text, stream.completions[0].token_ids) == ("", [120])


class TestKinds:
    """Cumulative, delta, final."""

    def test_cumulative_outputs_hold_everything_so_far(self):
        front = EnginelessFrontEnd()
        stream = front.open()
        front.receive({1: "ab"})
        first = take_first(stream)
        assert first.text == "ab"
        assert first.token_ids == [97, 98]
        assert first.finish_reason is None
        front.receive({1: "c"}, [end(1)])
        second = take_first(stream)
        assert (second.text, second.token_ids) == ("abc", [97, 98, 99])
        assert first.token_ids == [97, 98]  # what was given away does not change

    def test_deltas_hold_what_is_new(self):
        front = EnginelessFrontEnd()
        stream = front.open(output_kind=OutputKind.DELTA)
        front.receive({1: "ab"})
        assert take_first(stream).text == "ab"
        assert stream.take() is None
        front.receive({1: "c"})
        front.receive({1: "d"}, [end(1)])
        last = take_first(stream)
        assert last.text == "cd"
        assert last.token_ids == [99, 100]
        assert last.finish_reason == "length"

    def test_a_final_output_comes_at_the_end(self):
        front = EnginelessFrontEnd()
        stream = front.open(output_kind=OutputKind.FINAL)
        front.receive({1: "ab"})
        assert stream.take() is None
        front.receive({1: "c"}, [end(1)])
        assert take_first(stream).text == "abc"

    @given(st.data(), st.sampled_from(OutputKind), st.integers(1, 3), st.integers(1, 4))
    def test_every_way_of_taking_gives_the_same_whole(self, data, kind, n, interval):
        """Frames of any shape, takes at any time: nothing is lost, repeated or reordered."""
        front = EnginelessFrontEnd(stream_interval=interval)
        stream = front.open(n=n, output_kind=kind, seed=1)
        texts = {handle: data.draw(st.text("abäö€", max_size=12)) for handle in range(1, n + 1)}
        left = {handle: text.encode() for handle, text in texts.items()}
        got = dict.fromkeys(range(n), "")
        ids: dict[int, list[int]] = {index: [] for index in range(n)}
        outputs: list[RequestOutput] = []
        while left or not (outputs and outputs[-1].finished):
            now, ended = {}, []
            for handle in list(left):
                kept_back = data.draw(st.integers(0, len(left[handle])))
                count = len(left[handle]) - kept_back
                if count:
                    now[handle] = list(left[handle][:count])
                left[handle] = left[handle][count:]
                if not left[handle] and not data.draw(st.booleans()):
                    ended.append(end(handle))
                    del left[handle]
            front.receive(now, ended)
            if not left or not data.draw(st.booleans()):
                output = stream.take()
                if output is not None:
                    outputs.append(output)
                    for completion in output.outputs:
                        if kind == OutputKind.DELTA:
                            got[completion.index] += completion.text
                            ids[completion.index] += completion.token_ids
                        else:
                            got[completion.index], ids[completion.index] = (
                                completion.text,
                                completion.token_ids,
                            )
        assert [got[i] for i in range(n)] == list(texts.values())
        assert [ids[i] for i in range(n)] == [list(text.encode()) for text in texts.values()]
        assert [output.finished for output in outputs].count(True) == 1
        assert kind != OutputKind.FINAL or len(outputs) == 1
        assert len(front.outputs) == 0


class TestStreamInterval:
    """`stream_interval`: the first token and the end immediately, tokens between them in groups."""

    def test_later_tokens_are_delivered_in_groups(self):
        front = EnginelessFrontEnd(stream_interval=3)
        stream = front.open(output_kind=OutputKind.DELTA)
        texts = []
        for letter in "abcdefgh":
            front.receive({1: letter}, [end(1)] if letter == "h" else ())
            output = stream.take()
            texts.append(output and output.outputs[0].text)
        assert texts == ["a", None, None, "bcd", None, None, "efg", "h"]

    def test_a_frame_of_more_tokens_is_not_cut(self):
        front = EnginelessFrontEnd(stream_interval=3)
        stream = front.open()
        front.receive({1: "ab"})
        assert take_first(stream).text == "ab"
        front.receive({1: "cd"})
        assert stream.take() is None
        front.receive({1: "ef"})
        assert take_first(stream).text == "abcdef"

    def test_a_stop_string_ends_the_stream_at_once(self):
        front = EnginelessFrontEnd(stream_interval=100)
        stream = front.open(stop="!", output_kind=OutputKind.DELTA)
        front.receive({1: "a"})
        assert take_first(stream).text == "a"
        assert front.receive({1: "bc!d"}) == [1]
        assert (take_first(stream).text, stream.finished) == ("bc", True)

    def test_completions_are_grouped_apart(self):
        front = EnginelessFrontEnd(stream_interval=2)
        stream = front.open(n=2, seed=5, output_kind=OutputKind.DELTA)
        front.receive({1: "a", 2: "b"})
        assert [c.text for c in take(stream).outputs] == ["a", "b"]
        front.receive({1: "c", 2: "de"})
        assert [(c.index, c.text) for c in take(stream).outputs] == [(1, "de")]
        front.receive({1: "f"})
        assert [(c.index, c.text) for c in take(stream).outputs] == [(0, "cf")]

    def test_a_failed_stream_delivers_what_it_has_first(self):
        front = EnginelessFrontEnd(stream_interval=100)
        stream = front.open(output_kind=OutputKind.DELTA)
        front.receive({1: "a"})
        assert take_first(stream).text == "a"
        front.receive({1: "bc"})
        assert stream.take() is None
        front.outputs.fail(front.outputs.live_handles(), EngineDeadError("gone"))
        assert take_first(stream).text == "bc"
        with pytest.raises(EngineDeadError, match="gone"):
            stream.take()

    def test_a_caller_wakes_up_only_for_an_output(self):
        async def wake_ups() -> list[bool]:
            front = EnginelessFrontEnd(stream_interval=3)
            stream = front.open(output_kind=OutputKind.DELTA)
            found = []
            for letter in "abcd":
                waiter = stream.wait()
                front.receive({1: letter})
                found.append(waiter.done())
                stream.take()
            return found

        assert asyncio.run(wake_ups()) == [True, False, False, True]


class TestSeveralCompletions:
    """AF-6: n > 1."""

    def test_the_stream_ends_with_its_last_completion(self):
        front = EnginelessFrontEnd()
        stream = front.open(n=3, seed=5)
        front.receive({1: "a", 2: "b", 3: "c"}, [end(2)])
        output = take(stream)
        assert [(c.index, c.text, c.finish_reason) for c in output.outputs] == [
            (0, "a", None),
            (1, "b", "length"),
            (2, "c", None),
        ]
        assert not output.finished
        front.receive({1: "x"}, [end(1)])
        front.receive({3: "z"}, [end(3, FinishReason.STOP, stop_token_id=256)])
        output = take(stream)
        assert output.finished
        assert [(c.text, c.finish_reason) for c in output.outputs] == [
            ("ax", "length"),
            ("b", "length"),
            ("cz", "stop"),
        ]

    def test_deltas_name_only_completions_with_something_new(self):
        front = EnginelessFrontEnd()
        stream = front.open(n=3, seed=5, output_kind=OutputKind.DELTA)
        front.receive({3: "c", 1: "a"})
        assert [(c.index, c.text) for c in take(stream).outputs] == [(0, "a"), (2, "c")]
        front.receive({3: "d"})
        front.receive({3: "e", 2: "b"})
        assert [(c.index, c.text) for c in take(stream).outputs] == [(1, "b"), (2, "de")]

    def test_an_abort_ends_all_of_them(self):
        """AF-11."""
        front = EnginelessFrontEnd()
        stream = front.open(n=3, seed=5)
        front.receive({1: "a"}, [end(2)])
        assert front.outputs.abort(["r"]) == [1, 3]
        assert [c.finish_reason for c in take(stream).outputs] == ["abort", "length", "abort"]

    def test_all_of_them_count(self):
        front = EnginelessFrontEnd()
        front.open(n=3, seed=5)
        front.open("s")
        assert len(front.outputs.live_handles()) == 4
        front.receive({}, [end(1), end(2)])
        assert len(front.outputs.live_handles()) == 2
