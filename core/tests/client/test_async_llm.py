"""AsyncLLM over a real engine process: many streams, every way to end one, and nothing left behind (AF-4 to AF-13)."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tenonry.client import async_llm, input_processor
from tenonry.client.admission import MAX_REQUESTS_PER_TURN, Admission
from tenonry.errors import (
    DrainingError,
    EngineGenerateError,
    QueueFullError,
    RequestError,
    TenonryError,
)
from tenonry.messages import EngineCoreRequest, FinishedOutput
from tenonry.outputs import FinishReason
from tenonry.sampling_params import OutputKind
from tenonry_testkit.kernel.served import Served
from tenonry_testkit.served import LENGTH, collect, params, tokens

LONG = params(max_tokens=LENGTH - 20)


@pytest.fixture
def served(shared: Served) -> Any:
    """The shared engine; afterwards it is idle and open."""
    yield shared
    assert shared.engine.num_unfinished_requests == 0
    assert not shared.engine.errored
    shared.run(counts_are(shared, [0, 0]))


@pytest.fixture
def threads(served: Served, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Every text counts as long; the threads that tokenise it go when the test ends."""
    monkeypatch.setattr(input_processor, "LONG_TEXT_CHARS", 1)
    with ThreadPoolExecutor() as pool:
        served.runner.get_loop().set_default_executor(pool)
        yield


async def counts_are(served: Served, expected: list[int]) -> None:
    """The engine's [running, waiting], within a few steps."""
    for _ in range(300):
        if await served.engine._calls.call("request_counts") == [expected]:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(await served.engine._calls.call("request_counts"))


async def begin(served: Served, request_id: str = "r", **fields: Any) -> Any:
    """A stream that has delivered something and goes on for long."""
    stream = served.engine.generate([1, 2, 3], params(max_tokens=400, **fields), request_id)
    await anext(stream)
    return stream


class TestStreams:
    def test_one(self, served):
        assert served.run(collect(served.engine, [1, 2, 3], params(), "r")) == tokens(
            [1, 2, 3], params()
        )

    def test_many_at_once_get_their_own_tokens(self, served):
        """More than one chunk of the output handler, more than fit into a step (AF-5)."""
        work = {f"{i}": ([i % 512, i // 512, i], params(max_tokens=1 + i % 17)) for i in range(300)}

        async def main() -> list[list[int]]:
            return await asyncio.gather(
                *(collect(served.engine, *work[name], name) for name in work)
            )

        assert served.run(main()) == [tokens(*each) for each in work.values()]

    def test_a_flood_is_processed_a_few_at_a_time(self, served, monkeypatch):
        """Other tasks, such as a health probe, get the loop in between."""
        process = served.engine._inputs.process
        turns: list[int] = [0]

        def counted(*args: Any, **fields: Any) -> Any:
            turns[-1] += 1
            return process(*args, **fields)

        monkeypatch.setattr(served.engine._inputs, "process", counted)

        async def main() -> list[Any]:
            floods = [collect(served.engine, [i], params(), f"{i}") for i in range(300)]
            job = asyncio.gather(*floods, return_exceptions=True)
            while not job.done():
                await asyncio.sleep(0)
                turns.append(0)
            return await job

        results = served.run(main())
        assert results == [tokens([i], params()) for i in range(300)]
        assert sum(turns) == 300
        assert max(turns) <= MAX_REQUESTS_PER_TURN

    def test_cumulative_and_final_outputs(self, served):
        async def main(kind: OutputKind) -> list[list[int]]:
            stream = served.engine.generate([1, 2], params(output_kind=kind), "r")
            return [output.outputs[0].token_ids async for output in stream]

        whole = tokens([1, 2], params())
        cumulative = served.run(main(OutputKind.CUMULATIVE))
        assert cumulative[-1] == whole
        assert all(whole[: len(ids)] == ids for ids in cumulative)
        assert served.run(main(OutputKind.FINAL)) == [whole]

    def test_a_slow_caller_gets_everything_at_once(self, served):
        """Fault 15: nothing piles up but ids."""

        async def main() -> list[list[int]]:
            outputs = []
            async for output in served.engine.generate([5], params(max_tokens=30), "r"):
                outputs.append(output.outputs[0].token_ids)
                await asyncio.sleep(0.2)
            return outputs

        outputs = served.run(main())
        assert len(outputs) < 10
        assert sum(outputs, []) == tokens([5], params(max_tokens=30))  # noqa: RUF017 - a few short lists

    def test_text_in_text_out(self, served):
        async def main() -> Any:
            return [
                o
                async for o in served.engine.generate(
                    "hello", params(detokenize=True), "r", tags={"tenant": "a"}
                )
            ]

        outputs = served.run(main())
        assert outputs[0].prompt == "hello"
        assert outputs[0].prompt_token_ids == list(b"hello")
        assert "".join(output.outputs[0].text for output in outputs)

    def test_several_completions_of_one_request(self, served):
        """AF-6."""

        async def main() -> Any:
            sampling = params(n=3, temperature=1.0, seed=7, output_kind=OutputKind.FINAL)
            return [output async for output in served.engine.generate([1], sampling, "r")]

        (output,) = served.run(main())
        expected = [tokens([1], params(temperature=1.0, seed=7 + i)) for i in range(3)]
        assert [completion.token_ids for completion in output.outputs] == expected

    def test_a_stop_string_ends_the_request_in_the_engine_too(self, served):
        """AF-5."""
        first = chr(tokens("hello", params())[0])

        async def main() -> Any:
            sampling = params(
                stop=[first], detokenize=True, max_tokens=400, output_kind=OutputKind.FINAL
            )
            return [output async for output in served.engine.generate("hello", sampling, "r")]

        if ord(first) < 128:
            (output,) = served.run(main())
            assert output.outputs[0].finish_reason == "stop"

    def test_a_request_that_is_ready_for_the_engine_passes(self, served):
        """AF-6: and lists will do."""
        for ids in ([1, 2, 3], np.array([1, 2, 3])):
            made = EngineCoreRequest(
                handle=9, request_id="x", prompt_token_ids=ids, sampling_params=params()
            )  # type: ignore[arg-type]
            assert served.run(collect(served.engine, made, params(), "r")) == tokens(
                [1, 2, 3], params()
            )

    def test_a_long_text_is_tokenised_off_the_loop(self, served, threads, monkeypatch):
        seen_in = set()
        process = served.engine._inputs.process

        def seen(*args: Any, **fields: Any) -> Any:
            seen_in.add(threading.current_thread())
            return process(*args, **fields)

        monkeypatch.setattr(served.engine._inputs, "process", seen)
        prompt = "a prompt of some length"
        assert served.run(collect(served.engine, prompt, params(), "r")) == tokens(prompt, params())
        assert threading.main_thread() not in seen_in


class TestEnding:
    """AF-8: cancel, close, abort: the engine stops within a step."""

    def test_a_cancelled_task_aborts_its_request(self, served):
        async def main() -> None:
            task = asyncio.ensure_future(collect(served.engine, [1], LONG, "r"))
            await counts_are(served, [1, 0])
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await counts_are(served, [0, 0])

        served.run(main())

    def test_a_closed_generator_aborts_its_request(self, served):
        async def main() -> None:
            stream = await begin(served)
            await stream.aclose()
            assert served.engine.num_unfinished_requests == 0
            await counts_are(served, [0, 0])

        served.run(main())

    def test_a_generator_that_is_dropped_aborts_its_request(self, served):
        async def main() -> None:
            async for _ in served.engine.generate([1], LONG, "r"):
                break
            gc.collect()
            await counts_are(served, [0, 0])

        served.run(main())

    @pytest.mark.parametrize("how", ["one", "several", "all"])
    def test_an_aborted_stream_ends_with_what_it_has(self, served, how):
        """AF-11."""

        async def main() -> None:
            streams = [await begin(served, f"{i}") for i in range(3)]
            if how == "one":
                for i in range(3):
                    await served.engine.abort(f"{i}")
            elif how == "several":
                await served.engine.abort([*map(str, range(3)), "unknown"])
            else:
                await served.engine.abort_all()
            for stream in streams:
                outputs = [output async for output in stream]
                assert outputs[-1].finished
                assert outputs[-1].outputs[0].finish_reason == "abort"
            await counts_are(served, [0, 0])

        served.run(main())

    def test_one_failed_completion_takes_its_siblings_along(self, served, monkeypatch):
        """AF-8: the engine does not go on for a caller who has left."""
        absorb = served.engine._outputs.absorb

        def failing(outputs: Any) -> None:
            absorb(outputs)
            served.engine._outputs._on_finished(
                FinishedOutput(first, FinishReason.ERROR, error="NaN logits")
            )

        first = 0

        async def main() -> None:
            nonlocal first
            stream = await begin(served, n=3, temperature=1.0, seed=1)
            first = next(iter(served.engine._outputs._completions))
            monkeypatch.setattr(served.engine._outputs, "absorb", failing)
            with pytest.raises(EngineGenerateError, match="request r failed: NaN logits"):
                async for _ in stream:
                    pass
            monkeypatch.undo()
            await served.engine.abort("r")
            await counts_are(
                served, [1, 0]
            )  # the fault was made up here: the engine knows nothing of it
            served.engine._client.abort_requests([first])

        served.run(main())

    def test_an_error_while_a_stream_is_read_aborts_and_names_the_request(
        self, served, monkeypatch
    ):
        """AF-8: other → abort, EngineGenerateError from the cause."""

        def broken(output: Any) -> Any:
            raise KeyError("on purpose")

        monkeypatch.setattr(served.engine, "_post_process", broken)

        async def main() -> None:
            with pytest.raises(EngineGenerateError, match="request r failed") as caught:
                await collect(served.engine, [1], LONG, "r")
            assert isinstance(caught.value.__cause__, KeyError)
            await counts_are(served, [0, 0])

        served.run(main())


class TestRefusals:
    @pytest.mark.parametrize(
        ("prompt", "fields", "error", "text"),
        [
            ([], {}, RequestError, "the prompt is empty"),
            ([1] * LENGTH, {}, RequestError, f"max_model_len={LENGTH}"),
            ([512], {}, RequestError, "token id 512"),
            (["a"], {}, RequestError, "flat list of integers"),
            ("", {}, RequestError, "the prompt must be a text"),
            ([1], {"tags": {"k": "v" * 300}}, RequestError, "tag 'k'"),
            ([1], {"request_id": "x" * 300}, RequestError, "request_id has more than"),
            (
                [1],
                {"kv_transfer_params": {"x": object()}},
                RequestError,
                "request .* cannot be sent: object",
            ),
            ([1], {"kv_transfer_params": {"x": 2**70}}, RequestError, "cannot be sent"),
            (
                [1],
                {"data_parallel_rank": 5},
                RequestError,
                "data_parallel_rank=5: there is no such engine; the ranks here are 0",
            ),
            ([1], {"priority": "high"}, RequestError, "priority='high' has the wrong type"),
            ([1], {"priorty": 1}, TypeError, "did you mean 'priority'"),
            ([1], {"request_id": 5}, RequestError, "request_id=5 must be a str"),
        ],
    )
    def test_a_bad_request_fails_alone(self, served, prompt, fields, error, text):
        request_id = fields.pop("request_id", "r")

        async def main() -> None:
            with pytest.raises(error, match=text):
                await collect(served.engine, prompt, params(), request_id, **fields)

        served.run(main())

    def test_structured_output_says_that_it_is_not_there_yet(self, served):
        with pytest.raises(RequestError, match="structured output is not available"):
            served.run(collect(served.engine, [1], params(structured_output={"json": "{}"}), "r"))

    def test_an_id_in_use_is_refused_and_its_owner_goes_on(self, served):
        async def main() -> None:
            stream = await begin(served)
            with pytest.raises(RequestError, match="request id 'r' is in use"):
                await collect(served.engine, [1], params(), "r")
            await anext(stream)
            await stream.aclose()

        served.run(main())

    def test_another_event_loop_is_refused(self, served):
        served.run(collect(served.engine, [1], params(), "r"))
        with pytest.raises(
            TenonryError, match="serves another event loop; use it from one loop only"
        ):
            asyncio.run(collect(served.engine, [1], params(), "r"))
        with pytest.raises(TenonryError, match="another event loop"):
            asyncio.run(served.engine.reset_prefix_cache())

    def test_a_full_queue_is_refused_with_a_hint(self, served, monkeypatch):
        """Fault 17: accepted ones are unaffected; `n` completions count as `n`."""
        monkeypatch.setattr(Admission, "capacity", 4)

        async def main() -> None:
            first = await begin(served, "a", n=3, temperature=1.0, seed=1)
            with pytest.raises(
                QueueFullError,
                match=r"3 sequences run or wait, the request brings 2, .* the capacity is 4",
            ) as full:
                await collect(served.engine, [1], params(n=2, temperature=1), "b")
            assert full.value.retry_after_s > 0
            assert await collect(served.engine, [1], params(), "c") == tokens([1], params())
            await first.aclose()
            assert len(await collect(served.engine, [1], params(), "d")) == 8

        served.run(main())

    def test_requests_that_are_still_being_tokenised_count(self, served, threads, monkeypatch):
        monkeypatch.setattr(Admission, "capacity", 2)

        async def main() -> list[Any]:
            work = (collect(served.engine, "long text", params(), f"{i}") for i in range(5))
            return await asyncio.gather(*work, return_exceptions=True)

        results = served.run(main())
        assert sum(isinstance(result, QueueFullError) for result in results) == 3


class TestPause:
    """AF-12, AF-13."""

    def test_what_runs_is_aborted_and_what_comes_waits(self, served):
        async def main() -> None:
            stream = await begin(served)
            await served.engine.pause_generation()
            assert served.engine.is_paused
            assert [o async for o in stream][-1].outputs[0].finish_reason == "abort"
            held = [
                asyncio.ensure_future(collect(served.engine, [i], params(), f"h{i}"))
                for i in range(3)
            ]
            await asyncio.sleep(0.1)
            assert not any(task.done() for task in held)
            await served.engine.pause_generation()  # idempotent
            await served.engine.resume_generation()
            assert not served.engine.is_paused
            assert await asyncio.gather(*held) == [tokens([i], params()) for i in range(3)]

        served.run(main())

    def test_what_runs_may_be_waited_for(self, served):
        async def main() -> None:
            task = asyncio.ensure_future(collect(served.engine, [1], params(max_tokens=50), "r"))
            await counts_are(served, [1, 0])
            await served.engine.pause_generation(wait_for_inflight_requests=True, clear_cache=False)
            assert served.engine.num_unfinished_requests == 0
            assert await task == tokens([1], params(max_tokens=50))
            await served.engine.resume_generation()

        served.run(main())

    def test_caches_are_cleared_unless_that_is_not_wanted(self, served, monkeypatch):
        asked, call = [], served.engine._client.call

        def noted(method: str, *args: Any) -> Any:
            asked.append((method, *args, served.engine.num_unfinished_requests))
            return call(method, *args)

        monkeypatch.setattr(served.engine._client, "call", noted)

        async def main() -> None:
            await begin(served)
            await served.engine.pause_generation(clear_cache=False)
            assert asked == []
            await served.engine.pause_generation()
            assert asked == [("reset_prefix_cache", False, False, 0), ("reset_mm_cache", 0)]
            await served.engine.resume_generation()
            await served.engine.reset_prefix_cache(True, reset_connector=True)
            assert asked[2:] == [("reset_prefix_cache", True, True, 0)]

        served.run(main())

    def test_a_held_request_can_be_cancelled(self, served):
        async def main() -> None:
            await served.engine.pause_generation()
            task = asyncio.ensure_future(collect(served.engine, [1], params(), "r"))
            await asyncio.sleep(0.05)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await served.engine.resume_generation()
            assert served.engine._admission.held == 0

        served.run(main())

    def test_held_requests_count_against_the_queue(self, served, monkeypatch):
        monkeypatch.setattr(Admission, "capacity", 2)

        async def main() -> None:
            await served.engine.pause_generation()
            held = [
                asyncio.ensure_future(collect(served.engine, [1], params(), f"{i}"))
                for i in range(2)
            ]
            await asyncio.sleep(0.05)
            with pytest.raises(QueueFullError):
                await collect(served.engine, [1], params(), "one too many")
            await served.engine.resume_generation()
            await asyncio.gather(*held)

        served.run(main())

    def test_a_bad_request_is_refused_while_paused(self, served):
        async def main() -> None:
            await served.engine.pause_generation()
            with pytest.raises(RequestError):
                await collect(served.engine, [], params(), "r")
            await served.engine.resume_generation()

        served.run(main())


class TestDrain:
    @pytest.fixture(autouse=True)
    def _reopened(self, served) -> Any:
        yield
        served.engine._admission.is_draining = False

    def test_what_runs_is_finished_and_what_comes_is_refused(self, served):
        async def main() -> None:
            task = asyncio.ensure_future(collect(served.engine, [1], params(max_tokens=30), "r"))
            await counts_are(served, [1, 0])
            drained = asyncio.ensure_future(served.engine.drain(10))
            await asyncio.sleep(0)
            assert served.engine._admission.is_draining
            with pytest.raises(
                DrainingError, match="shutting down and accepts no new requests"
            ) as full:
                await collect(served.engine, [1], params(), "late")
            assert full.value.retry_after_s == 5.0
            assert await drained is True
            assert await task == tokens([1], params(max_tokens=30))

        served.run(main())

    def test_what_is_still_being_read_is_finished_too(self, served, threads, monkeypatch):
        """A long text becomes tokens in a thread; meanwhile no stream is open."""
        process = served.engine._inputs.process
        text = "a text"

        def slowly(prompt: Any, *args: Any, **fields: Any) -> Any:
            time.sleep(0.2)
            return process("a", *args, **fields)

        monkeypatch.setattr(served.engine._inputs, "process", slowly)

        async def main() -> None:
            task = asyncio.ensure_future(collect(served.engine, text, params(), "r"))
            await asyncio.sleep(0.05)
            assert await served.engine.drain(10) is True
            assert task.done()
            assert await task == tokens("a", params())

        served.run(main())

    def test_what_takes_too_long_is_left(self, served):
        async def main() -> None:
            stream = await begin(served)
            assert await served.engine.drain(0.05) is False
            await stream.aclose()

        served.run(main())


class TestCalls:
    """AF-15, AF-17, AF-20, AF-22, AF-23."""

    def test_of_the_engine(self, served):
        engine = served.engine

        async def main() -> None:
            assert await engine.reset_prefix_cache() is True
            await engine.reset_mm_cache()
            assert await engine.collective_rpc("echo", ["x"], timeout=5) == [[0, "x"]]
            assert await engine.add_lora("a", "/a") is True
            assert await engine.list_loras() == ["a"]
            assert await engine.pin_lora("a") is True
            assert await engine.remove_lora("a") is True
            await engine.start_profile()
            await engine.stop_profile()
            await engine.sleep(2)
            assert await engine.is_sleeping() is True
            await engine.wake_up()
            assert await engine.is_sleeping() is False
            assert await engine.get_supported_tasks() == ("generate",)
            assert await engine.is_tracing_enabled() is False
            await engine.do_log_stats()
            await engine.check_health()

        served.run(main())

    def test_a_call_that_fails_says_so_in_the_engines_words(self, served):
        with pytest.raises(EngineGenerateError, match="ValueError: worker says no"):
            served.run(served.engine.collective_rpc("raises"))
        with pytest.raises(EngineGenerateError, match="Unsupported: "):
            served.run(served.engine.collective_rpc("nothing"))

    def test_an_argument_that_cannot_be_sent_fails_here(self, served):
        with pytest.raises(TypeError, match="object cannot be sent"):
            served.run(served.engine.collective_rpc("echo", [object()]))
        assert served.engine._client._calls == {}

    def test_many_calls_at_once_get_their_own_answers(self, served):
        async def main() -> list[Any]:
            return await asyncio.gather(
                *(served.engine.collective_rpc("echo", [i]) for i in range(50))
            )

        assert served.run(main()) == [[[0, i]] for i in range(50)]

    def test_simple_facts(self, served):
        """HS-16, US-1."""
        engine = served.engine
        assert engine.is_running
        assert list(engine.engine_pids) == ["engine 0"]
        assert engine.info.max_model_len == LENGTH
        assert engine.info.num_gpu_blocks == engine._engines.fleet.engines[0].num_gpu_blocks > 0
        assert engine.info.served_model_name == "fake"
        assert {record.kind for record in engine.info.plugins} >= {
            "executor",
            "scheduler",
            "worker",
            "launcher",
            "hook_module",
        }
        usage = engine.info.usage
        assert usage is not None
        assert (usage.architecture, usage.tensor_parallel_size, usage.context) == (
            "FakeForCausalLM",
            1,
            "library",
        )
        assert engine.stat_loggers == {}
        with pytest.raises(ValueError, match="has no tokenizer"):
            engine.get_tokenizer()


def test_the_public_names_are_lazy():
    import tenonry

    assert tenonry.AsyncLLM is async_llm.AsyncLLM
    assert set(dir(tenonry)) >= {
        "LLM",
        "AsyncLLM",
        "EngineConfig",
        "SamplingParams",
        "hookimpl",
        "__version__",
    }
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = tenonry.Nothing
