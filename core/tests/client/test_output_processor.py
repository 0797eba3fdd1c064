"""Engine outputs become streams: text, stop strings, endings, log-probabilities, numbers (AF-5, 6, 11)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonry.client.input_processor import InputProcessor
from tenonry.client.output_processor import OutputProcessor
from tenonry.client.stream import Stream
from tenonry.config import EngineConfig
from tenonry.errors import EngineDeadError, EngineGenerateError, PluginFault, RequestError
from tenonry.interfaces.io_processor import IOProcessorContext
from tenonry.messages import EngineCoreOutputs, FinishedOutput, ScheduledOutput
from tenonry.outputs import CompletionOutput, FinishReason, RequestOutput
from tenonry.sampling_params import OutputKind, SamplingParams
from tenonry.step import PromptLogprobs, TokenLogprobs
from tenonry_testkit.fakes import ByteIOProcessor, VirtualClock
from tenonry_testkit.fakes.io_processor import ByteDetokenizer
from tenonry_testkit.fakes.model import fake_model

Tokens = Mapping[int, Sequence[int] | str]
CONFIG = EngineConfig(model="fake")
IO = ByteIOProcessor(IOProcessorContext(CONFIG, fake_model()))


class Front:
    """A front end without an engine: the test says what the engine said."""

    def __init__(self, io: ByteIOProcessor | None = IO, *, log_stats: bool = False) -> None:
        self.clock = VirtualClock()
        self.inputs = InputProcessor(fake_model(eos_token_ids=(256,)), io, 1000, seed=0)
        self.outputs = OutputProcessor(io, self.clock, log_stats=log_stats)

    def open(self, request_id: str = "r", prompt: Any = "hi", **params: Any) -> Stream:
        processed, requests = self.inputs.process(
            prompt, SamplingParams(**{"max_tokens": 99, **params}), request_id
        )
        return self.outputs.add(processed, requests)

    def hear(
        self,
        tokens: dict[int, Sequence[int] | str] | None = None,
        ended: Iterable[FinishedOutput] = (),
        **more: Any,
    ) -> list[int]:
        """One frame: handle → tokens. Returns the handles to abort."""
        self.outputs.absorb(frame(tokens or {}, ended, **more))
        return self.outputs.flush()


def frame(
    tokens: dict[int, Sequence[int] | str], ended: Iterable[FinishedOutput] = (), **more: Any
) -> EngineCoreOutputs:
    ids = [list(part.encode()) if isinstance(part, str) else list(part) for part in tokens.values()]
    offsets = np.cumsum([0, *map(len, ids)]).astype(np.int32)
    return EngineCoreOutputs(
        handles=np.array(list(tokens), np.uint64),
        token_ids=np.array([token for part in ids for token in part], np.int32),
        offsets=np.empty(0, np.int32) if all(len(part) == 1 for part in ids) else offsets,
        finished=list(ended),
        **more,
    )


def end(handle: int, reason: FinishReason = FinishReason.LENGTH, **fields: Any) -> FinishedOutput:
    return FinishedOutput(handle, reason, **fields)


def take(stream: Stream) -> RequestOutput:
    output = stream.take()
    assert output is not None
    return output


def one(stream: Stream) -> CompletionOutput:
    return take(stream).outputs[0]


class TestText:
    def test_tokens_become_text(self):
        front = Front()
        stream = front.open()
        front.hear({1: "Hel"})
        front.hear({1: "lo"}, [end(1)])
        output = take(stream)
        assert (output.request_id, output.prompt, output.prompt_token_ids) == (
            "r",
            "hi",
            [104, 105],
        )
        assert output.outputs[0].text == "Hello"
        assert output.outputs[0].token_ids == list(b"Hello")
        assert (output.finished, output.outputs[0].finish_reason) == (True, "length")
        assert len(front.outputs) == 0

    def test_half_a_character_waits_for_the_rest(self):
        front = Front()
        stream = front.open(output_kind=OutputKind.DELTA)
        first, second = "ä".encode()
        front.hear({1: [first]})
        assert (one(stream).text, stream.take()) == ("", None)
        front.hear({1: [second]})
        assert one(stream).text == "ä"

    def test_what_is_held_back_comes_with_the_end(self):
        front = Front()
        stream = front.open(stop="end", output_kind=OutputKind.DELTA)
        front.hear({1: "the en"})
        assert one(stream).text == "the "
        front.hear({}, [end(1)])
        assert one(stream).text == "en"

    def test_without_an_io_processor_there_are_only_ids(self):
        front = Front(None)
        stream = front.open(prompt=[1, 2])
        front.hear({1: [7, 8]}, [end(1)])
        assert (one(stream).text, stream.prompt) == ("", None)

    def test_nobody_detokenises_what_nobody_wants(self):
        front = Front()
        stream = front.open(detokenize=False)
        front.hear({1: "x"}, [end(1)])
        assert (one(stream).text, stream.completions[0].token_ids) == ("", [120])


class TestKinds:
    """Cumulative, delta, final."""

    def test_cumulative_outputs_hold_everything_so_far(self):
        front = Front()
        stream = front.open()
        front.hear({1: "ab"})
        first = one(stream)
        assert (first.text, first.token_ids, first.finish_reason) == ("ab", [97, 98], None)
        front.hear({1: "c"}, [end(1)])
        second = one(stream)
        assert (second.text, second.token_ids) == ("abc", [97, 98, 99])
        assert first.token_ids == [97, 98]  # what was given away does not change

    def test_deltas_hold_what_is_new(self):
        front = Front()
        stream = front.open(output_kind=OutputKind.DELTA)
        front.hear({1: "ab"})
        assert one(stream).text == "ab"
        assert stream.take() is None
        front.hear({1: "c"})
        front.hear({1: "d"}, [end(1)])
        last = one(stream)
        assert (last.text, last.token_ids, last.finish_reason) == ("cd", [99, 100], "length")

    def test_a_final_output_comes_at_the_end(self):
        front = Front()
        stream = front.open(output_kind=OutputKind.FINAL)
        front.hear({1: "ab"})
        assert stream.take() is None
        front.hear({1: "c"}, [end(1)])
        assert one(stream).text == "abc"

    @settings(deadline=None, max_examples=60)
    @given(st.data(), st.sampled_from(OutputKind), st.integers(1, 3))
    def test_every_way_of_taking_gives_the_same_whole(self, data, kind, n):
        """Frames of any shape, takes at any time: nothing is lost, repeated or reordered."""
        front = Front()
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
            front.hear(now, ended)
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


class TestSeveralCompletions:
    """AF-6: n > 1."""

    def test_the_stream_ends_with_its_last_completion(self):
        front = Front()
        stream = front.open(n=3, seed=5)
        front.hear({1: "a", 2: "b", 3: "c"}, [end(2)])
        output = take(stream)
        assert [(c.index, c.text, c.finish_reason) for c in output.outputs] == [
            (0, "a", None),
            (1, "b", "length"),
            (2, "c", None),
        ]
        assert not output.finished
        front.hear({1: "x"}, [end(1)])
        front.hear({3: "z"}, [end(3, FinishReason.STOP, stop_token_id=256)])
        output = take(stream)
        assert output.finished
        assert [(c.text, c.finish_reason) for c in output.outputs] == [
            ("ax", "length"),
            ("b", "length"),
            ("cz", "stop"),
        ]

    def test_deltas_name_only_completions_with_something_new(self):
        front = Front()
        stream = front.open(n=3, seed=5, output_kind=OutputKind.DELTA)
        front.hear({3: "c", 1: "a"})
        assert [(c.index, c.text) for c in take(stream).outputs] == [(0, "a"), (2, "c")]
        front.hear({3: "d"})
        front.hear({3: "e", 2: "b"})
        assert [(c.index, c.text) for c in take(stream).outputs] == [(1, "b"), (2, "de")]

    def test_an_abort_ends_all_of_them(self):
        """AF-11."""
        front = Front()
        stream = front.open(n=3, seed=5)
        front.hear({1: "a"}, [end(2)])
        assert front.outputs.abort(["r"]) == [1, 3]
        assert [c.finish_reason for c in take(stream).outputs] == ["abort", "length", "abort"]

    def test_all_of_them_count(self):
        front = Front()
        front.open(n=3, seed=5)
        front.open("s")
        assert front.outputs.num_completions == 4
        front.hear({}, [end(1), end(2)])
        assert front.outputs.num_completions == 2


class TestEndings:
    def test_a_stop_string_ends_the_request_and_the_engine_is_told(self):
        """AF-5."""
        front = Front()
        stream = front.open(stop=["END"])
        assert front.hear({1: "abcENDxyz"}) == [1]
        output = one(stream)
        assert (output.text, output.finish_reason, output.stop_reason) == ("abc", "stop", "END")
        assert output.token_ids == list(b"abcEND")
        assert front.hear({1: "more"}, [end(1, FinishReason.ABORT)]) == []
        assert stream.take() is None

    def test_a_stop_string_across_frames(self):
        front = Front()
        stream = front.open(stop="END", include_stop_str_in_output=True)
        for piece, aborted in (("abE", []), ("N", []), ("Dz", [1])):
            assert front.hear({1: piece}) == aborted
        assert one(stream).text == "abEND"

    def test_no_abort_for_what_the_engine_has_ended(self):
        front = Front()
        stream = front.open(stop="END")
        assert front.hear({1: "aEND"}, [end(1)]) == []
        assert one(stream).stop_reason == "END"

    @pytest.mark.parametrize(
        ("stop_token_ids", "stop_reason"), [([65], 65), (None, None), ([66], None)]
    )
    def test_a_stop_id_is_a_reason_if_the_caller_named_it(self, stop_token_ids, stop_reason):
        front = Front()
        stream = front.open(stop_token_ids=stop_token_ids)
        front.hear({1: "A"}, [end(1, FinishReason.STOP, stop_token_id=65)])
        output = one(stream)
        assert (output.finish_reason, output.stop_reason) == ("stop", stop_reason)

    def test_an_error_ends_the_one_request(self):
        front = Front()
        bad, good = front.open("bad"), front.open("good")
        front.hear({1: "a", 2: "b"}, [end(1, FinishReason.ERROR, error="NaN logits")])
        assert one(bad).finish_reason == "error"
        assert isinstance(bad.error, EngineGenerateError)
        assert str(bad.error) == "request bad failed: NaN logits"
        assert (good.error, one(good).text) == (None, "b")

    def test_an_error_without_words_gets_some(self):
        front = Front()
        stream = front.open()
        front.hear({}, [end(1, FinishReason.ERROR)])
        assert "the engine gave no reason" in str(take(stream).error)

    def test_news_of_unknown_requests_is_ignored(self):
        front = Front()
        assert (
            front.hear({77: "x", 78: "yz"}, [end(79)], scheduled=[ScheduledOutput(80, 0.0, 0)])
            == []
        )

    def test_an_id_in_use_is_refused_and_free_after_the_end(self):
        """A live duplicate is an error."""
        front = Front()
        front.open("same")
        with pytest.raises(RequestError, match="request id 'same' is in use") as caught:
            front.open("same")
        assert caught.value.param == "request_id"
        front.hear({}, [end(1)])
        front.open("same")

    def test_transfer_parameters_reach_the_caller(self):
        front = Front()
        stream = front.open()
        front.hear({}, [end(1, kv_transfer_params={"block": 3})])
        assert take(stream).kv_transfer_params == {"block": 3}


class TestAbort:
    """AF-11."""

    def test_what_was_generated_is_kept(self):
        front = Front()
        stream = front.open()
        front.hear({1: "ab"})
        assert front.outputs.abort(["r", "unknown"]) == [1]
        output = take(stream)
        assert (output.finished, output.outputs[0].text, output.outputs[0].finish_reason) == (
            True,
            "ab",
            "abort",
        )
        assert front.outputs.abort(["r"]) == []

    def test_between_arrival_and_detokenisation(self):
        front = Front()
        stream = front.open()
        front.outputs.absorb(frame({1: "ab"}))
        front.outputs.abort(["r"])
        assert one(stream).text == "ab"
        assert front.outputs.flush() == []

    def test_a_stop_string_that_was_there_already_wins(self):
        """Two endings would be one too many: the stream could never end."""
        front = Front()
        stream = front.open(stop="END")
        front.outputs.absorb(frame({1: "abEND"}))
        assert front.outputs.abort(["r"]) == [1]
        output = take(stream)
        assert output.finished
        assert (output.outputs[0].text, output.outputs[0].finish_reason) == ("ab", "stop")
        assert len(front.outputs) == 0

    def test_an_engine_that_dies_ends_every_stream(self):
        front = Front()
        streams = [front.open(f"{i}") for i in range(3)]
        front.hear({1: "a"})
        error = EngineDeadError("gone")
        front.outputs.fail_all(error)
        assert one(streams[0]).text == "a"  # what came before is still there
        for stream in streams:
            with pytest.raises(EngineDeadError, match="gone"):
                stream.take()
        assert len(front.outputs) == front.outputs.num_completions == 0

    def test_a_final_output_is_whole_or_not_at_all(self):
        front = Front()
        stream = front.open(output_kind=OutputKind.FINAL)
        front.hear({1: "a"})
        front.outputs.fail_all(EngineDeadError("gone"))
        with pytest.raises(EngineDeadError):
            stream.take()

    def test_live_handles_are_those_that_the_engine_still_runs(self):
        front = Front()
        front.open("a", n=2, seed=1)
        front.open("b", stop="END")
        front.hear({3: "END"}, [end(1)])
        assert front.outputs.live_handles() == [2]


def logprobs(rows: list[int], ids: list[list[int]]) -> TokenLogprobs:
    values = -np.arange(len(rows) * len(ids[0]), dtype=np.float32).reshape(len(rows), -1)
    return TokenLogprobs(
        np.array(rows, np.int32),
        np.array(ids, np.int32),
        values,
        np.arange(1, len(rows) + 1, dtype=np.int32),
    )


class TestLogprobs:
    def test_the_sampled_token_comes_first_then_the_likeliest_asked_for(self):
        front = Front()
        stream = front.open(logprobs=2)
        front.hear({1: "b"}, logprobs=logprobs([0], [[98, 97, 99, 100]]))
        (entry,) = one(stream).logprobs or []
        assert list(entry) == [98, 97, 99]
        assert (entry[98].logprob, entry[98].rank, entry[98].decoded_token) == (0.0, 1, "b")
        assert (entry[97].logprob, entry[97].rank, entry[97].decoded_token) == (-1.0, 1, "a")
        assert entry[99].rank == 2

    def test_a_sampled_token_among_the_likeliest_is_named_once(self):
        front = Front()
        stream = front.open(logprobs=2)
        front.hear({1: "a"}, logprobs=logprobs([0], [[97, 97, 98]]))
        (entry,) = one(stream).logprobs or []
        assert list(entry) == [97, 98]

    def test_only_for_those_who_asked(self):
        front = Front()
        plain, asked = front.open("plain"), front.open("asked", logprobs=0)
        front.hear({1: "a", 2: "b"}, logprobs=logprobs([0, 1], [[97, 98], [98, 97]]))
        assert one(plain).logprobs is None
        assert [list(entry) for entry in one(asked).logprobs or []] == [[98]]

    @pytest.mark.parametrize("kind", [OutputKind.CUMULATIVE, OutputKind.DELTA])
    def test_there_is_one_entry_per_token_whenever_they_are_taken(self, kind):
        """A take between the arrival of a frame and its detokenisation must not tear the two apart."""
        front = Front()
        stream = front.open(logprobs=0, output_kind=kind)
        front.hear({1: "a"}, logprobs=logprobs([0], [[97]]))
        front.outputs.absorb(frame({1: "b"}, logprobs=logprobs([0], [[98]])))
        outputs = [one(stream)]
        front.outputs.flush()
        outputs.append(one(stream))
        for output in outputs:
            assert [next(iter(entry)) for entry in output.logprobs or []] == output.token_ids
        assert outputs[-1].token_ids == ([98] if kind == OutputKind.DELTA else [97, 98])

    def test_what_lies_behind_a_stop_string_is_dropped_with_its_token(self):
        front = Front()
        stream = front.open(logprobs=0, stop="ab")
        for token in (97, 98, 99):
            front.outputs.absorb(frame({1: [token]}, logprobs=logprobs([0], [[token]])))
        front.outputs.flush()
        output = one(stream)
        assert (output.token_ids, len(output.logprobs or [])) == ([97, 98], 2)

    def test_of_the_prompt_with_nothing_for_the_first_token(self):
        front = Front()
        stream = front.open(prompt="abc", prompt_logprobs=1)
        part = PromptLogprobs(
            0,
            1,
            np.array([[98, 99], [99, 98]], np.int32),
            np.zeros((2, 2), np.float32),
            np.array([1, 2], np.int32),
        )
        front.hear({1: "x"}, prompt_logprobs=[part], prompt_logprobs_handles=[1])
        found = take(stream).prompt_logprobs
        assert found is not None
        assert found[0] is None
        assert [list(entry) for entry in found[1:] if entry] == [[98, 99], [99, 98]]

    def test_a_preempted_request_computes_those_of_its_prompt_again(self):
        front = Front()
        stream = front.open(prompt="abcd", prompt_logprobs=0)

        def part(start: int, *ids: int) -> dict[str, Any]:
            columns = np.array([ids], np.int32).T
            made = PromptLogprobs(
                0, start, columns, columns.astype(np.float32), np.ones(len(ids), np.int32)
            )
            return {"prompt_logprobs": [made], "prompt_logprobs_handles": [1]}

        front.hear({}, **part(1, 98, 99))
        front.hear({}, **part(1, 98))
        front.hear({1: "x"}, **part(2, 99, 100))
        found = take(stream).prompt_logprobs
        assert found is not None
        assert [next(iter(entry)) for entry in found[1:] if entry] == [98, 99, 100]


class BrokenIO(ByteIOProcessor):
    """Fails where it is told to."""

    fails = ""

    def make_detokenizer(
        self, prompt_token_ids: Sequence[int], params: SamplingParams
    ) -> ByteDetokenizer | None:
        if self.fails == "make_detokenizer":
            raise ValueError("on purpose")
        made = super().make_detokenizer(prompt_token_ids, params)
        if (
            made is not None
            and self.fails in {"push", "finish"}
            and "bad" in bytes(prompt_token_ids).decode()
        ):
            setattr(made, self.fails, self._raise)
        return made

    def token_texts(self, token_ids: Sequence[int]) -> list[str]:
        if self.fails == "token_texts":
            raise ValueError("on purpose")
        return super().token_texts(token_ids)

    def process_prompt(self, prompt: Any, params: SamplingParams, **options: Any) -> Any:
        if self.fails == "process_prompt":
            raise KeyError("on purpose")
        return super().process_prompt(prompt, params, **options)

    def _raise(self, *_: Any) -> str:
        raise ValueError("on purpose")


class TestFaultsOfTheIOProcessor:
    """An IO processor that raises fails the one request; the plugin is named; the others go on."""

    def front(self, fails: str) -> Front:
        io = BrokenIO(IOProcessorContext(CONFIG, fake_model()))
        io.fails = fails
        return Front(io)

    @pytest.mark.parametrize("call", ["push", "finish", "token_texts"])
    def test_while_a_request_runs(self, call):
        front = self.front(call)
        bad, good = front.open("b", "bad", logprobs=0), front.open("g", "good")
        aborts = front.hear({1: "x", 2: "y"}, logprobs=logprobs([0], [[120]]))
        assert aborts == ([] if call == "finish" else [1])
        front.hear({2: "z"}, [end(1), end(2)])
        assert take(good).outputs[0].text == "yz"
        assert isinstance(bad.error, EngineGenerateError)
        assert take(bad).outputs[0].finish_reason == "error"
        fault = bad.error.__cause__
        assert isinstance(fault, PluginFault)
        assert fault.call == call
        assert "BrokenIO" in fault.plugin
        assert "request b failed: plugin" in str(bad.error)
        assert len(front.outputs) == front.outputs.num_completions == 0

    def test_when_a_request_is_aborted(self):
        front = self.front("finish")
        front.open("b", "bad")
        assert front.outputs.abort(["b"]) == [1]
        assert len(front.outputs) == 0

    def test_before_a_request_is_accepted(self):
        front = self.front("make_detokenizer")
        with pytest.raises(
            EngineGenerateError, match=r"request r failed: plugin .*BrokenIO.* in make_detokenizer"
        ):
            front.open(n=2, seed=1)
        assert len(front.outputs) == front.outputs.num_completions == 0

    def test_while_a_prompt_is_processed(self):
        with pytest.raises(
            EngineGenerateError, match=r"request r failed: plugin .* in process_prompt: KeyError"
        ):
            self.front("process_prompt").open()


class TestWaiting:
    """A caller is woken when there is something for it, and only then."""

    def woken(self, act: Any, **params: Any) -> bool:
        async def main() -> bool:
            front = Front()
            stream = front.open(**params)
            waiter = stream.wait()
            act(front)
            return waiter.done()

        return asyncio.run(main())

    def test_by_tokens(self):
        assert self.woken(lambda front: front.hear({1: "a"}))

    def test_not_by_tokens_if_only_the_end_matters(self):
        assert not self.woken(lambda front: front.hear({1: "a"}), output_kind=OutputKind.FINAL)
        assert self.woken(
            lambda front: front.hear({1: "a"}, [end(1)]), output_kind=OutputKind.FINAL
        )

    @pytest.mark.parametrize("kind", OutputKind)
    def test_by_an_end_an_abort_and_a_death(self, kind):
        for act in (
            lambda front: front.hear({}, [end(1)]),
            lambda front: front.hear({}, [end(1, FinishReason.ERROR)]),
            lambda front: front.outputs.abort(["r"]),
            lambda front: front.outputs.fail_all(EngineDeadError("x")),
        ):
            assert self.woken(act, output_kind=kind)

    def test_a_caller_that_was_cancelled_is_left_alone(self):
        async def main() -> None:
            front = Front()
            stream = front.open()
            stream.wait().cancel()
            front.hear({1: "a"}, [end(1)])

        asyncio.run(main())


class TestNumbers:
    def test_times_of_a_request(self):
        front = Front(log_stats=True)
        stream = front.open("r", "hi", max_tokens=7)
        front.clock.advance(1)
        front.hear({}, scheduled=[ScheduledOutput(1, 0.5, 1)])
        front.clock.advance(1)
        front.hear({1: "a"})
        front.clock.advance(2)
        front.hear({1: "b"}, [end(1, num_preemptions=2)])
        output = take(stream)
        assert output.num_cached_tokens == 1
        assert output.metrics is not None
        assert (output.metrics.queued_s, output.metrics.num_preemptions) == (0.5, 2)
        taken = front.outputs.take_iteration()
        assert (taken.num_prompt_tokens, taken.num_cached_tokens, taken.num_generation_tokens) == (
            2,
            1,
            2,
        )
        assert (taken.ttft_s, taken.inter_token_latency_s) == ([2.0], [2.0])
        (ended,) = taken.finished
        assert (ended.request_id, ended.finish_reason, ended.num_prompt_tokens, ended.num_generation_tokens) == (
            "r", "length", 2, 2,
        )  # fmt: skip
        assert (
            ended.e2e_latency_s,
            ended.ttft_s,
            ended.queued_s,
            ended.prefill_s,
            ended.decode_s,
        ) == (
            4,
            2,
            0.5,
            1.5,
            2,
        )
        assert (ended.max_tokens, ended.n, ended.num_preemptions) == (7, 1, 2)
        assert front.outputs.take_iteration().finished == []

    def test_a_request_that_never_got_a_token(self):
        front = Front(log_stats=True)
        front.open()
        front.clock.advance(3)
        front.outputs.abort(["r"])
        (ended,) = front.outputs.take_iteration().finished
        assert (ended.ttft_s, ended.prefill_s, ended.decode_s, ended.e2e_latency_s) == (
            None,
            0,
            0,
            3,
        )
        assert ended.finish_reason == "abort"

    def test_several_completions_are_one_request(self):
        front = Front(log_stats=True)
        front.open(n=2, seed=1)
        front.hear({1: "ab", 2: "c"}, [end(1), end(2)])
        (ended,) = front.outputs.take_iteration().finished
        assert (ended.num_generation_tokens, ended.n) == (3, 2)

    def test_tags_reach_the_record(self):
        front = Front(log_stats=True)
        processed, requests = front.inputs.process(
            "hi", SamplingParams(), "r", tags={"tenant": "acme"}
        )
        front.outputs.add(processed, requests)
        front.outputs.abort(["r"])
        assert front.outputs.take_iteration().finished[0].tags == {"tenant": "acme"}

    def test_the_callers_trace_and_the_time_of_day_of_its_start_reach_the_record(self, monkeypatch):
        """AF-22."""
        front = Front(log_stats=True)
        headers = {"traceparent": "00-1-2-01"}
        processed, requests = front.inputs.process(
            "hi", SamplingParams(), "r", trace_headers=headers
        )
        front.outputs.add(processed, requests)
        front.clock.advance(3)
        monkeypatch.setattr("tenonry.client.request_ends.time.time", lambda: 1_000_000.0)
        front.outputs.abort(["r"])
        (ended,) = front.outputs.take_iteration().finished
        assert ended.trace_headers == headers
        assert (ended.start_time, ended.e2e_latency_s) == (1_000_000.0 - 3, 3)

    def test_tokens_count_for_the_engine_that_made_them(self):
        front = Front(log_stats=True)
        for number, name in enumerate(("a", "b"), 1):
            front.open(name, "hi" * number)
            front.hear({}, scheduled=[ScheduledOutput(number, 0.1, 0)], engine_index=number)
        front.outputs.absorb(frame({1: "xyz"}, engine_index=1))
        front.outputs.absorb(frame({2: "z"}, [end(2)], engine_index=2))
        front.outputs.flush()
        one, two = front.outputs.take_iteration(1), front.outputs.take_iterations()
        assert (one.num_prompt_tokens, one.num_generation_tokens, one.finished) == (2, 3, [])
        assert list(two) == [2]
        assert (two[2].num_prompt_tokens, two[2].num_generation_tokens, len(two[2].finished)) == (
            4,
            1,
            1,
        )
        assert front.outputs.take_iterations() == {}
