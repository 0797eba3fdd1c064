"""When a caller is woken, and the numbers of requests for stat loggers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tenonry.errors import EngineDeadError
from tenonry.messages import ScheduledOutput
from tenonry.outputs import FinishReason
from tenonry.sampling_params import OutputKind, SamplingParams
from tenonry_testkit.kernel.output_frames import EnginelessFrontEnd, end, frame, take


class TestWaiting:
    """A caller is woken when there is something for it, and only then."""

    def woken(self, act: Any, **params: Any) -> bool:
        async def main() -> bool:
            front = EnginelessFrontEnd()
            stream = front.open(**params)
            waiter = stream.wait()
            act(front)
            return waiter.done()

        return asyncio.run(main())

    def test_by_tokens(self):
        assert self.woken(lambda front: front.receive({1: "a"}))

    def test_not_by_tokens_if_only_the_end_matters(self):
        assert not self.woken(lambda front: front.receive({1: "a"}), output_kind=OutputKind.FINAL)
        assert self.woken(
            lambda front: front.receive({1: "a"}, [end(1)]), output_kind=OutputKind.FINAL
        )

    @pytest.mark.parametrize("kind", OutputKind)
    def test_by_an_end_an_abort_and_a_death(self, kind):
        for act in (
            lambda front: front.receive({}, [end(1)]),
            lambda front: front.receive({}, [end(1, FinishReason.ERROR)]),
            lambda front: front.outputs.abort(["r"]),
            lambda front: front.outputs.fail(front.outputs.live_handles(), EngineDeadError("x")),
        ):
            assert self.woken(act, output_kind=kind)

    def test_a_caller_that_was_cancelled_is_left_alone(self):
        async def main() -> None:
            front = EnginelessFrontEnd()
            stream = front.open()
            stream.wait().cancel()
            front.receive({1: "a"}, [end(1)])

        asyncio.run(main())


class TestNumbers:
    def test_the_weight_version_of_the_newest_tokens(self):
        front = EnginelessFrontEnd()
        first, second = front.open("a"), front.open("b")
        for version, tokens in (("", {1: "a", 2: "b"}), ("v1", {1: "c"}), ("v2", {1: "d"})):
            news = frame(tokens)
            news.weight_version = version
            front.outputs.absorb(news)
            front.outputs.flush()
        assert (take(first).weight_version, take(second).weight_version) == ("v2", "")

    def test_times_of_a_request(self):
        front = EnginelessFrontEnd(log_stats=True)
        stream = front.open("r", "hi", max_tokens=7)
        front.clock.advance(1)
        front.receive({}, scheduled=[ScheduledOutput(1, 0.5, 1)])
        front.clock.advance(1)
        front.receive({1: "a"})
        front.clock.advance(2)
        front.receive({1: "b"}, [end(1, num_preemptions=2)])
        output = take(stream)
        assert output.num_cached_tokens == 1
        assert output.metrics is not None
        assert (output.metrics.queued_s, output.metrics.num_preemptions) == (0.5, 2)
        taken = front.outputs.take_iteration()
        assert taken.num_prompt_tokens == 2
        assert taken.num_cached_tokens == 1
        assert taken.num_generation_tokens == 2
        assert (taken.ttft_s, taken.inter_token_latency_s) == ([2.0], [2.0])
        (ended,) = taken.finished
        assert ended.request_id == "r"
        assert ended.finish_reason == "length"
        assert ended.num_prompt_tokens == 2
        assert ended.num_generation_tokens == 2
        assert ended.e2e_latency_s == 4
        assert ended.ttft_s == 2
        assert ended.queued_s == 0.5
        assert ended.prefill_s == 1.5
        assert ended.decode_s == 2
        assert ended.max_tokens == 7
        assert ended.n == 1
        assert ended.num_preemptions == 2
        assert front.outputs.take_iteration().finished == []

    @pytest.mark.parametrize(("arrival_time", "waited"), [(90.0, 10), (100.0, 0), (101.0, 0)])
    def test_times_count_from_the_arrival_that_the_caller_knows(
        self, monkeypatch, arrival_time, waited
    ):
        """AF-6; one in the future is now."""
        monkeypatch.setattr("time.time", lambda: 100.0)
        front = EnginelessFrontEnd(log_stats=True)
        params = SamplingParams(max_tokens=2)
        processed = front.inputs.process("hi", params, "r", arrival_time=arrival_time)
        front.outputs.add(*processed)
        front.clock.advance(1)
        front.receive({1: "a"})
        front.clock.advance(2)
        front.receive({1: "b"}, [end(1)])
        taken = front.outputs.take_iteration()
        assert taken.ttft_s == [waited + 1]
        assert taken.finished[0].e2e_latency_s == waited + 3
        assert taken.finished[0].start_time == 100 - waited - 3

    def test_a_request_that_never_got_a_token(self):
        front = EnginelessFrontEnd(log_stats=True)
        front.open()
        front.clock.advance(3)
        front.outputs.abort(["r"])
        (ended,) = front.outputs.take_iteration().finished
        assert ended.ttft_s is None
        assert ended.prefill_s == 0
        assert ended.decode_s == 0
        assert ended.e2e_latency_s == 3
        assert ended.finish_reason == "abort"

    def test_several_completions_are_one_request(self):
        front = EnginelessFrontEnd(log_stats=True)
        front.open(n=2, seed=1)
        front.clock.advance(1)
        front.receive({1: "ab", 2: "c"}, [end(1), end(2)])
        taken = front.outputs.take_iteration()
        assert taken.ttft_s == [1.0]
        (ended,) = taken.finished
        assert (ended.num_generation_tokens, ended.n) == (3, 2)

    def test_tags_reach_the_record(self):
        front = EnginelessFrontEnd(log_stats=True)
        processed, requests = front.inputs.process(
            "hi", SamplingParams(), "r", tags={"tenant": "acme"}
        )
        front.outputs.add(processed, requests)
        front.outputs.abort(["r"])
        assert front.outputs.take_iteration().finished[0].tags == {"tenant": "acme"}

    def test_the_callers_trace_and_the_time_of_day_of_its_start_reach_the_record(self, monkeypatch):
        """AF-22."""
        front = EnginelessFrontEnd(log_stats=True)
        headers = {"traceparent": "00-1-2-01"}
        processed, requests = front.inputs.process(
            "hi", SamplingParams(), "r", trace_headers=headers
        )
        front.outputs.add(processed, requests)
        front.clock.advance(3)
        monkeypatch.setattr("tenonry.client.stream.time.time", lambda: 1_000_000.0)
        front.outputs.abort(["r"])
        (ended,) = front.outputs.take_iteration().finished
        assert ended.trace_headers == headers
        assert (ended.start_time, ended.e2e_latency_s) == (1_000_000.0 - 3, 3)

    def test_frames_of_one_flush_are_one_gap_of_each_request(self):
        front = EnginelessFrontEnd(log_stats=True)
        front.open("a")
        front.open("b")
        front.receive({1: "a", 2: "b"})
        front.clock.advance(1)
        front.outputs.absorb(frame({1: "c"}))
        front.clock.advance(1)
        front.outputs.absorb(frame({1: "de", 2: "f"}))
        front.outputs.flush()
        taken = front.outputs.take_iteration()
        assert taken.num_generation_tokens == 6
        assert taken.inter_token_latency_s == [1.0, 2.0]

    def test_gaps_of_completions_whose_last_tokens_came_in_different_frames(self):
        front = EnginelessFrontEnd(log_stats=True)
        for name in "abcd":
            front.open(name)
        front.receive({1: "a", 2: "b", 3: "c"})
        front.clock.advance(1)
        front.receive({2: "d", 3: "e"})
        front.outputs.take_iteration()
        front.clock.advance(2)
        front.receive({1: "f", 2: "g", 3: "h", 4: "i"})
        assert front.outputs.take_iteration().inter_token_latency_s == [3.0, 2.0, 2.0]

    def test_tokens_of_each_step_include_prompts_that_start(self):
        front = EnginelessFrontEnd(log_stats=True)
        front.open("a", "hello")
        front.open("b", "hi")
        front.receive({}, scheduled=[ScheduledOutput(1, 0.0, 0)])  # a prompt in chunks
        front.receive({1: "x"}, scheduled=[ScheduledOutput(2, 0.0, 0)])
        front.receive({1: "y", 2: "zz"})
        front.receive({1: "y"}, scheduled=[ScheduledOutput(1, 0.0, 0)])  # resumed elsewhere
        taken = front.outputs.take_iteration()
        assert taken.step_tokens == [3, 3, 1]
        assert taken.num_prompt_tokens == 7

    def test_tokens_of_a_request_that_was_aborted_are_no_gap(self):
        front = EnginelessFrontEnd(log_stats=True)
        front.open("a")
        front.open("b")
        front.receive({1: "a", 2: "b"})
        front.outputs.abort(["a"])
        front.clock.advance(1)
        front.receive({1: "c", 2: "d"})
        assert front.outputs.take_iteration().inter_token_latency_s == [1.0]

    def test_tokens_count_for_the_engine_that_made_them(self):
        front = EnginelessFrontEnd(log_stats=True)
        for number, name in enumerate(("a", "b"), 1):
            front.open(name, "hi" * number)
            front.receive({}, scheduled=[ScheduledOutput(number, 0.1, 0)], engine_index=number)
        front.outputs.absorb(frame({1: "xyz"}, engine_index=1))
        front.outputs.absorb(frame({2: "z"}, [end(2)], engine_index=2))
        front.outputs.flush()
        of_one, of_all = front.outputs.take_iteration(1), front.outputs.take_iterations()
        assert of_one.num_prompt_tokens == 2
        assert of_one.num_generation_tokens == 3
        assert of_one.finished == []
        assert list(of_all) == [2]
        assert of_all[2].num_prompt_tokens == 4
        assert of_all[2].num_generation_tokens == 1
        assert len(of_all[2].finished) == 1
        assert front.outputs.take_iterations() == {}
