"""The conformance suite of request codecs: each line of their contract is a test. Test process.

from tenonry_testkit.request_codec import RequestCodecContract

class TestMine(RequestCodecContract):
    request_codec = "my_package:MyCodec"
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import Phase

from tenonry.config import EngineConfig
from tenonry.errors import RequestError
from tenonry.interfaces.plugin import PluginContext
from tenonry.interfaces.request_codec import RequestCodec
from tenonry.messages import EngineCoreRequest, FinishedOutput
from tenonry.outputs import FinishReason
from tenonry.sampling_params import SamplingParams
from tenonry.step import Media
from tenonry.transport.serial import Encoder, Frame
from tenonry_testkit.search import PHASES, search
from tenonry_testkit.targets import resolve_target

NUM_KINDS = 5
MOST_SENDS = 4
PROMPT = np.arange(20, dtype=np.int32)
HANDLES = itertools.count(1)


class Link:
    """Link of a front end to an engine."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.requests: dict[int, EngineCoreRequest] = {}


class Engine:
    """An engine, with the links of two front ends."""

    def __init__(self, codec: RequestCodec, index: int) -> None:
        self.codec = codec
        self.links = [Link(index) for _ in range(2)]


def make_request(kinds: Sequence[int], **fields: Any) -> EngineCoreRequest:
    """Return a request with media of these kinds, different in size and bytes; none: without media."""
    media = None
    if kinds:
        digests = np.array([[kind] * 32 for kind in kinds], np.uint8)
        spans = np.array([[2 * place, 1] for place in range(len(kinds))])
        inputs = [
            {"pixels": np.full(300_000 + kind, kind, np.uint8), "grid": np.full(2, kind)}
            for kind in kinds
        ]
        media = Media(spans, digests, inputs, spans[:1])
    return EngineCoreRequest(
        handle=next(HANDLES),
        request_id="r",
        prompt_token_ids=PROMPT,
        sampling_params=SamplingParams(),
        media=media,
        **fields,
    )


def content(request: EngineCoreRequest) -> list[bytes]:
    """Complete content of a request, for comparisons."""
    return [bytes(frame) for frame in Encoder().encode(request)]


def events() -> st.SearchStrategy[tuple[str, int, int, list[int]]]:
    """Draw events, with front end, engine, and kinds of media."""
    names = ("send", "send", "send", "lose", "cannot", "engine", "front end", "reset", "detach")
    kinds = st.lists(st.integers(0, NUM_KINDS - 1), max_size=4)
    return st.tuples(st.sampled_from(names), st.integers(0, 1), st.integers(0, 1), kinds)


class RequestCodecContract:
    """Subclass in a test module and name the `request_codec`; `options` are its own.

    `config` holds further fields of EngineConfig; `effort` multiplies the number of examples.
    """

    request_codec: ClassVar[str | type[RequestCodec] | None] = None
    options: ClassVar[dict[str, Any]] = {}
    config: ClassVar[dict[str, Any]] = {}
    effort: ClassVar[float] = 1.0
    phases: ClassVar[Sequence[Phase]] = PHASES

    # ------------------------------------------------------------------ tools, for tests of your own
    def build(self) -> RequestCodec:
        """Build a fresh codec like the kernel."""
        cls, options, _ = resolve_target("request_codec", self.request_codec, self.options)
        config = EngineConfig(model="fake", **{"max_images": 8, "mm_cache_mib": 1, **self.config})
        made: RequestCodec = cls(PluginContext(config, options=options))
        return made

    def send(self, front: RequestCodec, link: Link, request: EngineCoreRequest) -> list[Frame]:
        """Encode a request for an engine, like the kernel."""
        frames = front.encode(request, link)
        link.requests[request.handle] = request
        return frames

    def deliver(
        self, front: RequestCodec, engine: Engine, client: int, request: EngineCoreRequest
    ) -> None:
        """Send a request until the engine has it, and compare it."""
        link = engine.links[client]
        wanted = content(request)
        for _ in range(MOST_SENDS):
            frames = [bytes(frame) for frame in self.send(front, link, request)]
            try:
                got = engine.codec.decode(frames, client)
            except Exception as error:
                assert self.again(front, link, request, error), (
                    f"a request is neither delivered nor sent once more: {error!r}"
                )
                continue
            assert content(got) == wanted, "a request arrives as another one"
            assert content(request) == wanted, "`encode` changes the request that it is given"
            return
        pytest.fail(f"a request does not arrive when it is sent {MOST_SENDS} times")

    def again(
        self, front: RequestCodec, link: Link, request: EngineCoreRequest, error: Exception
    ) -> bool:
        """Reject a request in the engine; returns True if the codec resends it."""
        code = getattr(error, "code", "")
        outcome = FinishedOutput(request.handle, FinishReason.ERROR, error=str(error), code=code)
        return front.ended(link, outcome, link.requests.pop(request.handle, None))

    def _search(
        self, strategy: st.SearchStrategy[Any], check: Callable[[Any], object], examples: int = 60
    ) -> None:
        search(strategy, check, max(1, round(examples * self.effort)), self.phases)

    # ------------------------------------------------------------------ the contract
    def test_it_is_a_request_codec_that_the_kernel_accepts(self) -> None:
        """It resolves, implements the interface in a version that the kernel drives, and can be built."""
        assert isinstance(self.build(), RequestCodec)

    def test_what_arrives_is_what_was_sent(self) -> None:
        """For any loss, reset or restart between two front ends and two engines."""

        def play(drawn: list[tuple[str, int, int, list[int]]]) -> None:
            fronts = [self.build(), self.build()]
            engines = [Engine(self.build(), index) for index in range(2)]
            for name, client, index, kinds in drawn:
                front = fronts[client]
                link = engines[index].links[client]
                if name == "send":
                    self.deliver(front, engines[index], client, make_request(kinds))
                elif name == "lose":
                    self.send(front, link, make_request(kinds))
                elif name == "cannot":
                    with pytest.raises(RequestError):
                        front.encode(make_request(kinds, kv_transfer_params={"a": object()}), link)
                elif name == "engine":
                    engines[index] = Engine(self.build(), index)
                elif name == "front end":
                    fronts[client] = self.build()
                elif name == "reset":
                    front.forget()
                else:
                    engines[index].codec.forget(client)
            for client, engine in itertools.product(range(2), engines):
                self.deliver(fronts[client], engine, client, make_request(range(NUM_KINDS)))

        self._search(st.lists(events(), max_size=20), play)

    def test_requests_in_flight_survive_a_loss(self) -> None:
        """Several requests rejected by an engine for one loss are all delivered in the end."""
        front, engine = self.build(), Engine(self.build(), 0)
        link = engine.links[0]
        self.deliver(front, engine, 0, make_request([1, 2]))
        engine.codec.forget(0)
        refused = []
        for request in [make_request([1, 2]), make_request([2, 3]), make_request([1])]:
            frames = self.send(front, link, request)
            try:
                engine.codec.decode([bytes(frame) for frame in frames], 0)
            except RequestError as error:
                refused.append((request, error))
        for request, error in refused:
            assert self.again(front, link, request, error)
            self.deliver(front, engine, 0, request)

    def test_a_request_is_not_sent_for_ever(self) -> None:
        """An engine that always rejects it, with any code, ends it."""
        front, engine = self.build(), Engine(self.build(), 0)
        link = engine.links[0]
        errors: list[Exception] = [RequestError("it failed")]
        self.deliver(front, engine, 0, make_request([1]))
        engine.codec.forget(0)
        request = make_request([1])
        try:
            engine.codec.decode([bytes(frame) for frame in self.send(front, link, request)], 0)
        except RequestError as error:
            errors.append(error)
        for error in errors:
            num_sends = 0
            link.requests[request.handle] = request
            while self.again(front, link, request, error):
                num_sends += 1
                assert num_sends < MOST_SENDS, "it is sent without end"
                self.send(front, link, request)

    def test_a_request_that_was_aborted_may_still_fail(self) -> None:
        """Its outcome comes without a request, and the next one arrives."""
        front, engine = self.build(), Engine(self.build(), 0)
        request = make_request([1])
        self.send(front, engine.links[0], request)
        engine.links[0].requests.clear()
        self.again(front, engine.links[0], request, RequestError("it failed"))
        self.deliver(front, engine, 0, make_request([1]))

    def test_a_request_without_media_is_sent_whole(self) -> None:
        """Its message equals that of the kernel's own codec."""
        request = make_request([])
        front = self.build()
        self.deliver(front, Engine(self.build(), 0), 0, make_request([1]))
        assert [bytes(frame) for frame in front.encode(request, Link(0))] == content(request)
