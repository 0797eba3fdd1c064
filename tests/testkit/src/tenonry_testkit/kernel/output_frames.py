"""A front end without an engine: the test supplies the frames of the engine. Test process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tenonry.client.input_processor import InputProcessor
from tenonry.client.output_processor import OutputProcessor
from tenonry.client.stream import Stream
from tenonry.config import EngineConfig
from tenonry.interfaces.io_processor import IOProcessorContext
from tenonry.messages import EngineCoreOutputs, FinishedOutput
from tenonry.outputs import CompletionOutput, FinishReason, RequestOutput
from tenonry.plugin.plan import PluginPlan
from tenonry.sampling_params import SamplingParams
from tenonry.step import NO_ROWS, TokenLogprobs
from tenonry_testkit.fakes import ByteIOProcessor, VirtualClock
from tenonry_testkit.fakes.model import fake_info, fake_model

Tokens = Mapping[int, Sequence[int] | str]
CONFIG = EngineConfig(model="fake")
IO_CONTEXT = IOProcessorContext(CONFIG, fake_model())
BYTE_IO = ByteIOProcessor(IO_CONTEXT)


class EnginelessFrontEnd:
    """Input and output processor with these `settings`. Handles count up from 1. `ended`: ids of ended requests."""

    def __init__(
        self, io: ByteIOProcessor | None = BYTE_IO, *, log_stats: bool = False, **settings: Any
    ) -> None:
        self.clock = VirtualClock()
        self.ended: list[str] = []
        config = EngineConfig(model="fake", **settings)
        model = fake_model(eos_token_ids=(256,))
        self.inputs = InputProcessor(config, PluginPlan(), model, io, fake_info(1000))
        self.outputs = OutputProcessor(
            io, config, self.clock, log_stats=log_stats, on_end=self.ended.append
        )

    def open(self, request_id: str = "r", prompt: Any = "hi", **params: Any) -> Stream:
        sampling = SamplingParams(**{"max_tokens": 99, **params})
        processed, requests = self.inputs.process(prompt, sampling, request_id)
        return self.outputs.add(processed, requests)

    def receive(
        self, tokens: Tokens | None = None, ended: Iterable[FinishedOutput] = (), **more: Any
    ) -> list[int]:
        """Process one frame: handle → tokens. Returns the handles to abort."""
        self.outputs.absorb(frame(tokens or {}, ended, **more))
        return self.outputs.flush()


def frame(tokens: Tokens, ended: Iterable[FinishedOutput] = (), **more: Any) -> EngineCoreOutputs:
    """Return the message of an engine after a step; a text represents its bytes."""
    ids: list[int] = []
    ends = [0]
    for part in tokens.values():
        ids += part.encode() if isinstance(part, str) else part
        ends.append(len(ids))
    offsets = np.array(ends, np.int32)
    if np.all(np.diff(offsets) == 1):
        offsets = NO_ROWS  # one token each
    return EngineCoreOutputs(
        handles=np.array(list(tokens), np.uint64),
        token_ids=np.array(ids, np.int32),
        offsets=offsets,
        finished=list(ended),
        **more,
    )


def end(handle: int, reason: FinishReason = FinishReason.LENGTH, **fields: Any) -> FinishedOutput:
    """The terminal outcome of one engine request."""
    return FinishedOutput(handle, reason, **fields)


def take(stream: Stream) -> RequestOutput:
    """Return the next output, which must exist."""
    output = stream.take()
    assert output is not None
    return output


def take_first(stream: Stream) -> CompletionOutput:
    """The first completion of the next output."""
    return take(stream).outputs[0]


def logprobs(rows: list[int], ids: list[list[int]]) -> TokenLogprobs:
    """Log-probabilities of sampled tokens: 0, -1, -2, … over all columns; ranks 1, 2, …"""
    shape = (len(rows), len(ids[0]))
    values = -np.arange(len(rows) * len(ids[0]), dtype=np.float32)
    return TokenLogprobs(
        row=np.array(rows, np.int32),
        token_ids=np.array(ids, np.int32),
        logprobs=values.reshape(shape),
        rank=np.arange(1, len(rows) + 1, dtype=np.int32),
    )
