"""The conformance suite of request checks: each line of their contract is a test. Test process.

from tenonry_testkit.request_check import RequestCheckContract

class TestMine(RequestCheckContract):
    request_check = "my_package:my_check"
    rejected = [make_request(tags={})]
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from tenonry.config import EngineConfig
from tenonry.errors import RequestError
from tenonry.interfaces.plugin import PluginSettings
from tenonry.interfaces.request_check import RequestLimits
from tenonry.messages import EngineCoreRequest
from tenonry.plugin.kinds import REQUEST_CHECKS
from tenonry.sampling_params import PoolingParams, SamplingParams, StructuredOutput
from tenonry.step import Adapter, Media
from tenonry_testkit.effects import watched
from tenonry_testkit.functions import given, resolve_function
from tenonry_testkit.wall_clock import WallClockTrap

MAX_MODEL_LEN, VOCABULARY = 64, 100
ENGINE = frozenset({"features", "grammar", "lora", "media", "rounds"})


def make_request(length: int = 3, handle: int = 1, **fields: Any) -> EngineCoreRequest:
    """Return a request of `length` prompt tokens; `fields` are further ones of `EngineCoreRequest`."""
    fields.setdefault("sampling_params", SamplingParams())
    prompt = (np.arange(length, dtype=np.int32) + 1) % VOCABULARY
    return EngineCoreRequest(
        handle=handle, request_id=f"r{handle}", prompt_token_ids=prompt, **fields
    )


def any_requests() -> list[EngineCoreRequest]:
    """Requests with every field in use, ordinary and unusual; clients can send all of them."""
    media = Media(np.array([[0, 2]]), np.zeros((1, 32), np.uint8), [{"x": np.zeros(2)}])
    empty = Media(np.empty((0, 2), np.int64), np.empty((0, 32), np.uint8), [])
    params = SamplingParams
    return [
        make_request(),
        make_request(0),
        make_request(MAX_MODEL_LEN),
        make_request(MAX_MODEL_LEN + 9),
        make_request(priority=-5, cache_salt="salt", output_token_ids=[4, 5]),
        make_request(tags={"tenant": "acme", "weight": 1.5}),
        make_request(tags={"tenant": 7.0}),
        make_request(tags={"": ""}),
        make_request(adapter=Adapter("tune", "0a1b")),
        make_request(media=media),
        make_request(media=empty),
        make_request(features={"x": np.zeros((3, 2), np.float32)}),
        make_request(kv_transfer_params={"remote": "node", "port": 1}),
        make_request(trace_headers={"traceparent": "00-1-2-3"}, arrival_time=12.5),
        make_request(data_parallel_rank=3, stop_token_ids=(1, 2), bad_words=((1,), (2, 3))),
        make_request(sampling_params=params(max_tokens=1, extra_args={"x": [1, {"y": None}]})),
        make_request(sampling_params=params(n=2, temperature=0.5, seed=1, logprobs=2)),
        make_request(sampling_params=params(structured_output=StructuredOutput(regex="a+"))),
        make_request(sampling_params=params(pooling=PoolingParams(task="embed"))),
    ]


class RequestCheckContract:
    """Subclass in a test module and name the `request_check`; `settings` are values of its own settings.

    `accepted` and `rejected`: requests with a known verdict.
    """

    request_check: ClassVar[str | Callable[..., None] | None] = None
    settings: ClassVar[dict[str, Any]] = {}
    accepted: ClassVar[Sequence[EngineCoreRequest]] = ()
    rejected: ClassVar[Sequence[EngineCoreRequest]] = ()

    # ------------------------------------------------------------------ tools, for tests of your own
    @functools.cached_property
    def check(self) -> Callable[[EngineCoreRequest, RequestLimits], None]:
        """Return the check as found by front ends and engines."""
        return self.build()

    def build(self) -> Callable[[EngineCoreRequest, RequestLimits], None]:
        """Return the function, from its name or unchanged."""
        check: Callable[..., None] = resolve_function(REQUEST_CHECKS, given(self.request_check))
        return check

    def limits(self, *, is_engine: bool = False) -> RequestLimits:
        """Return the limits of a front end, or of an engine, which include its worker."""
        config = EngineConfig(model="fake", **self.settings)
        config.section(getattr(self.check, "Settings", PluginSettings))
        known: dict[str, Any] = {"worker": "fake", "capabilities": ENGINE} if is_engine else {}
        return RequestLimits(MAX_MODEL_LEN, VOCABULARY, config, **known)

    @functools.cached_property
    def _limits(self) -> dict[bool, RequestLimits]:
        return {is_engine: self.limits(is_engine=is_engine) for is_engine in (False, True)}

    def verdict(self, request: EngineCoreRequest, *, is_engine: bool = False) -> str:
        """Text of the rejection, or "". Any other exception propagates."""
        try:
            self.check(request, self._limits[is_engine])
        except RequestError as error:
            return str(error)
        return ""

    def requests(self) -> list[EngineCoreRequest]:
        """All requests of this suite."""
        return [*any_requests(), *self.accepted, *self.rejected]

    # ------------------------------------------------------------------ the contract
    def test_it_is_a_function_that_the_kernel_finds(self) -> None:
        """It accepts a request and limits, and its `Settings`, if any, are a PluginSettings."""
        check = self.check
        assert callable(check)
        inspect.signature(check).bind(make_request(), None)
        settings = getattr(check, "Settings", PluginSettings)
        assert inspect.isclass(settings), f"Settings is no class: {settings!r}"
        assert issubclass(settings, PluginSettings), f"{settings} is no PluginSettings"

    def test_it_rejects_with_request_errors_only(self) -> None:
        """Any possible request is accepted, or rejected with RequestError."""
        for request in self.requests():
            for is_engine in (False, True):
                self.verdict(request, is_engine=is_engine)

    def test_it_answers_nothing(self) -> None:
        """Results are ignored: False rejects no request."""
        limits = self.limits()
        for request in self.requests():
            with contextlib.suppress(RequestError):
                answer = self.check(request, limits)
                assert answer is None, f"it returned {answer!r}; raise RequestError to reject"

    def test_it_changes_nothing(self) -> None:
        """It changes neither the request nor its contents."""
        for request in self.requests():
            before = _frozen(request)
            with contextlib.suppress(RequestError):
                self.check(request, self._limits[False])
            assert _frozen(request) == before

    def test_it_decides_by_the_request_alone(self) -> None:
        """The same request has the same verdict at any time, after any other requests."""
        requests = self.requests()
        first = [self.verdict(request) for request in requests]
        for _ in range(3):
            last = [self.verdict(request) for request in reversed(requests)]
            assert last[::-1] == first

    def test_a_rejection_holds_in_the_engine(self) -> None:
        """The engine rejects the same requests, which no client can avoid."""
        for request in self.requests():
            if text := self.verdict(request):
                assert self.verdict(request, is_engine=True), f"only front ends reject: {text}"

    def test_a_rejection_has_a_text_and_names_a_field(self) -> None:
        """Its message is for the client; `param` is a field, or None."""
        for request in self.requests():
            try:
                self.check(request, self._limits[False])
            except RequestError as error:
                assert str(error).strip(), "a rejection without a text"
                assert error.param is None or (isinstance(error.param, str) and error.param)

    def test_it_has_no_effects(self) -> None:
        """It runs for each request, on the event loop: no files, sockets, processes, output or threads."""
        check, limits = self.check, self.limits()
        for request in self.requests():
            with watched() as effects, contextlib.suppress(RequestError):
                check(request, limits)
            assert not effects, effects

    def test_it_reads_no_clock(self) -> None:
        """A pure function; `arrival_time` is a field of the request."""
        check, limits = self.check, self.limits()
        trap = WallClockTrap([check.__module__.partition(".")[0]])
        try:
            with trap.watched():
                for request in self.requests():
                    with contextlib.suppress(RequestError):
                        check(request, limits)
        finally:
            trap.close()

    def test_known_verdicts(self) -> None:
        """Those of `accepted` and `rejected`, in front end and engine."""
        for is_engine in (False, True):
            for request in self.accepted:
                assert not self.verdict(request, is_engine=is_engine)
            for request in self.rejected:
                assert self.verdict(request, is_engine=is_engine), f"accepted: {request}"


def _frozen(request: EngineCoreRequest) -> bytes:
    def plain(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return [str(value.dtype), list(value.shape), value.tobytes()]
        raise TypeError(type(value))

    return msgspec.msgpack.encode(request, enc_hook=plain)
