"""AsyncLLM over a real engine process: many streams, and every way to end one (AF-4 to AF-11)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from typing import Any

import numpy as np
import pytest

from tenonry.client import async_llm
from tenonry.client.admission import MAX_WORK_PER_TURN
from tenonry.errors import DrainingError, EngineGenerateError
from tenonry.messages import EngineCoreRequest, FinishedOutput
from tenonry.outputs import FinishReason
from tenonry.sampling_params import OutputKind
from tenonry_testkit.served import LENGTH, collect, params, tokens

pytestmark = pytest.mark.integration

LONG = params(max_tokens=LENGTH - 20)


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
        process = served.engine.input_processor.process
        turns: list[int] = [0]

        def counted(*args: Any, **fields: Any) -> Any:
            turns[-1] += 1
            return process(*args, **fields)

        monkeypatch.setattr(served.engine.input_processor, "process", counted)

        async def main() -> list[Any]:
            floods = [collect(served.engine, [i], params(), f"{i}") for i in range(400)]
            job = asyncio.gather(*floods, return_exceptions=True)
            while not job.done():
                await asyncio.sleep(0)
                turns.append(0)
            return await job

        results = served.run(main())
        assert results == [tokens([i], params()) for i in range(400)]
        assert sum(turns) == 400
        assert max(turns) <= MAX_WORK_PER_TURN

    @pytest.mark.parametrize(("prompt", "num_chars"), [("x" * 300, 300), ([1], 0)])
    def test_text_takes_time_of_its_turn(self, served, monkeypatch, prompt, num_chars):
        turns: list[int] = []

        async def turn(num_chars: int) -> None:
            turns.append(num_chars)
            raise DrainingError("that is all the test asks")

        monkeypatch.setattr(served.engine.admission, "turn", turn)
        with contextlib.suppress(DrainingError):
            served.run(collect(served.engine, prompt, params(), "r"))
        assert turns == [num_chars]

    def test_an_interval_groups_the_tokens_of_a_stream(self, serve):
        served = serve(stream_interval=5)
        wanted = params(max_tokens=23, output_kind=OutputKind.DELTA)

        async def main() -> list[list[int]]:
            stream = served.engine.generate([1, 2, 3], wanted, "r")
            return [output.outputs[0].token_ids async for output in stream]

        parts = served.run(main())
        assert [token for part in parts for token in part] == tokens([1, 2, 3], wanted)
        assert all(len(part) >= 5 for part in parts[1:-1])

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
        process = served.engine.input_processor.process

        def seen(*args: Any, **fields: Any) -> Any:
            seen_in.add(threading.current_thread())
            return process(*args, **fields)

        monkeypatch.setattr(served.engine.input_processor, "process", seen)
        prompt = "a prompt of some length"
        assert served.run(collect(served.engine, prompt, params(), "r")) == tokens(prompt, params())
        assert threading.main_thread() not in seen_in


class TestEnding:
    """AF-8: cancel, close, abort: the engine stops within a step."""

    def test_a_cancelled_task_aborts_its_request(self, served):
        async def main() -> None:
            task = asyncio.ensure_future(collect(served.engine, [1], LONG, "r"))
            await served.counts_are(1, 0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await served.counts_are(0, 0)

        served.run(main())

    def test_a_closed_generator_aborts_its_request(self, served):
        async def main() -> None:
            stream = await served.begin()
            await stream.aclose()
            assert served.engine.num_unfinished_requests == 0
            await served.counts_are(0, 0)

        served.run(main())

    def test_a_generator_that_is_dropped_aborts_its_request(self, served):
        async def main() -> None:
            async for _ in served.engine.generate([1], LONG, "r"):
                break
            gc.collect()
            await served.counts_are(0, 0)

        served.run(main())

    @pytest.mark.parametrize("how", ["one", "several", "all"])
    def test_an_aborted_stream_ends_with_what_it_has(self, served, how):
        """AF-11."""

        async def main() -> None:
            streams = [await served.begin(f"{i}") for i in range(3)]
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
            await served.counts_are(0, 0)

        served.run(main())

    def test_one_failed_completion_takes_its_siblings_along(self, served, monkeypatch):
        """AF-8: the engine does not continue for a caller who has left."""
        absorb = served.engine.output_processor.absorb

        def failing(outputs: Any) -> None:
            absorb(outputs)
            served.engine.output_processor._on_finished(
                FinishedOutput(first, FinishReason.ERROR, error="NaN logits")
            )

        first = 0

        async def main() -> None:
            nonlocal first
            stream = await served.begin(n=3, temperature=1.0, seed=1)
            first = next(iter(served.engine.output_processor._completions))
            monkeypatch.setattr(served.engine.output_processor, "absorb", failing)
            with pytest.raises(EngineGenerateError, match="request r failed: NaN logits"):
                async for _ in stream:
                    pass
            monkeypatch.undo()
            await served.engine.abort("r")
            await served.counts_are(1, 0)  # the fault was injected here: the engine is not affected
            served.engine.engine_core.abort_requests([first])

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
            await served.counts_are(0, 0)

        served.run(main())


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
