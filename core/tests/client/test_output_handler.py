"""From the engine's socket into streams, a bounded amount of work per turn of the loop."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tenonry.client.output_handler import OutputHandler
from tenonry.client.stream import Stream
from tenonry.config import EngineConfig
from tenonry.messages import EngineCoreOutputs, FinishedOutput
from tenonry.outputs import FinishReason
from tenonry.sampling_params import OutputKind, SamplingParams
from tenonry.step import PromptLogprobs
from tenonry_testkit.kernel.output_frames import EnginelessFrontEnd


class Client:
    """The link to an engine, with all the frames that it is going to send."""

    dead = None

    def __init__(self, frames: list[EngineCoreOutputs]) -> None:
        self.engines: dict[int, Any] = {}
        self.output_fd, self._other_end = os.pipe()
        self._frames = deque(frames)

    def receive(self) -> EngineCoreOutputs | None:
        return self._frames.popleft() if self._frames else None

    def abort_requests(self, handles: list[int]) -> None:
        """There is no engine."""

    def check_alive(self) -> None:
        """It is."""

    def fail_calls(self, error: Exception) -> None:
        """There are none."""

    def close(self) -> None:
        os.close(self.output_fd)
        os.close(self._other_end)


def frame(handle: int, token_id: int, logprobs_for: int | None = None) -> EngineCoreOutputs:
    """A token of one request, with the prompt's log-probabilities of another."""
    ids = np.array([[98, 99], [99, 98]], np.int32)
    part = PromptLogprobs(0, 1, ids, np.zeros((2, 2), np.float32), np.ones(2, np.int32))
    return EngineCoreOutputs(
        handles=np.array([handle], np.uint64),
        token_ids=np.array([token_id], np.int32),
        prompt_logprobs=[] if logprobs_for is None else [part],
        prompt_logprobs_handles=[] if logprobs_for is None else [logprobs_for],
    )


class Handler(OutputHandler):
    """A handler without a tokenizer."""

    def __init__(self, client: Client, **settings: Any) -> None:
        stats = SimpleNamespace(enabled=False)
        engines: Any = SimpleNamespace(client=client, stats=stats, listen=lambda *_: None)
        super().__init__(
            EngineConfig(model="fake", max_num_queued_reqs=None, **settings), engines, None
        )
        self.inputs = EnginelessFrontEnd(None).inputs

    def open(self, request_id: str, prompt: list[int], **params: Any) -> Stream:
        """Open the stream of a request, under the next handle."""
        processed, requests = self.inputs.process(prompt, SamplingParams(**params), request_id)
        with self.admission.admit(request_id, 1):
            return self.outputs.add(processed, requests)


@pytest.mark.parametrize(("with_logprobs", "deltas"), [(False, [8]), (True, [1] * 8)])
def test_streams_move_between_frames_with_the_logprobs_of_prompts(with_logprobs, deltas):
    """Each such frame is many milliseconds of work."""
    client = Client([frame(1, 7 + i, 2 + i if with_logprobs else None) for i in range(8)])

    async def main() -> list[int]:
        handler = Handler(client)
        stream = handler.open("stream", [97], max_tokens=9, output_kind=OutputKind.DELTA)
        for i in range(8):
            handler.open(f"long {i}", [97, 98, 99], prompt_logprobs=1)
        handler.listen()
        found = []
        while sum(found) < 8:
            if output := stream.take():
                found.append(len(output.outputs[0].token_ids))
            else:
                await stream.wait()
        handler.stop(RuntimeError("the test is over"))
        return found

    assert asyncio.run(main()) == deltas
    client.close()


@pytest.mark.parametrize("settings", [{}, {"output_chunk_size": 32}])
def test_many_requests_that_end_at_once_end_over_several_turns_of_the_loop(settings):
    """Each of them is detokenised to its end and wakes a caller; the chunk has a setting (AF-5)."""
    ended = [FinishedOutput(handle, FinishReason.LENGTH) for handle in range(1, 1601)]
    frame_size = 10
    client = Client(
        [
            EngineCoreOutputs(finished=ended[start : start + frame_size])
            for start in range(0, len(ended), frame_size)
        ]
    )

    async def main() -> list[int]:
        handler = Handler(client, **settings)
        for number in range(1600):
            handler.open(f"{number}", [97])
        handler.listen()
        turns = []
        while left := len(handler.outputs):
            await asyncio.sleep(0)
            turns.append(left - len(handler.outputs))
        assert not handler.admission.tickets
        handler.stop(RuntimeError("the test is over"))
        return turns

    turns = asyncio.run(main())
    assert sum(turns) == 1600
    assert max(turns) < settings.get("output_chunk_size", 128) + frame_size
    client.close()


def test_a_broken_frame_of_a_dead_engine_is_logged(caplog):
    """The streams of its requests end all the same."""
    broken: Any = None
    client = Client([EngineCoreOutputs(finished=[broken])])
    assert Handler(client).settle() == []
    client.close()
    assert "outputs that had arrived are lost" in caplog.text
    assert "AttributeError" in caplog.text
