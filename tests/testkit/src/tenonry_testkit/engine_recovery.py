"""The conformance suite of engine recoveries: each line of their contract is a test. Test process.

from tenonry_testkit.engine_recovery import EngineRecoveryContract

class TestMine(EngineRecoveryContract):
    recovery = "my_package:MyRecovery"
"""

from __future__ import annotations

import asyncio
import inspect
from array import array
from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from tenonry.config import EngineConfig
from tenonry.errors import EngineDeadError
from tenonry.info import PluginRecord
from tenonry.interfaces.launcher import Death
from tenonry.interfaces.recovery import EngineEvents, EngineRecovery, RecoveryContext
from tenonry.launch.process import ProcessLauncher
from tenonry.messages import EngineCoreRequest
from tenonry.plugin.manager import PluginManager
from tenonry.plugin.plan import PluginPlan
from tenonry.sampling_params import SamplingParams
from tenonry.stats import StatRecord
from tenonry_testkit.fakes.model import fake_model
from tenonry_testkit.targets import resolve_target

KILLED = Death("engine 0 (pid 1) ended with signal SIGKILL", exit_code=-9)
NUM_REQUESTS = 3


def request(handle: int, **fields: Any) -> EngineCoreRequest:
    """A request with its own stream."""
    return EngineCoreRequest(
        handle=handle,
        request_id=f"r{handle}",
        prompt_token_ids=np.arange(3, dtype=np.int32),
        sampling_params=SamplingParams(max_tokens=8),
        **fields,
    )


@dataclass(eq=False)
class FakeStream:
    """A stream of one completion with `delivered_ids`; implements `OpenStream` and `OpenCompletion`."""

    request: EngineCoreRequest
    delivered_ids: array[int] = field(default_factory=lambda: array("q"))
    is_scheduled: bool = True

    @property
    def stream(self) -> FakeStream:
        return self

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_generated(self) -> int:
        return len(self.delivered_ids)


class FakeStreams:
    """Open streams of a front end. `sent`: requests to any engine; `failed`: errors by handle."""

    def __init__(self, client: FakeClient, streams: Iterable[FakeStream]) -> None:
        self._client = client
        self.open = {each.request.handle: each for each in streams}
        self.failed: dict[int, Exception] = {}

    def completion(self, handle: int) -> FakeStream | None:
        return self.open.get(handle)

    def is_open(self, request_id: str) -> bool:
        return any(each.request_id == request_id for each in self.open.values())

    def send(self, requests: Sequence[EngineCoreRequest]) -> None:
        self._client.sent.extend(requests)

    def fail(self, handles: Iterable[int], error: Exception) -> None:
        for handle in list(handles):
            assert handle not in self.failed, f"request {handle} failed twice"
            self.failed[handle] = error
            self.open.pop(handle, None)


class FakeClient:
    """Engines 0, which died, and 1. `sent`: requests to any engine; `sent_to`: those to one, by its index."""

    def __init__(self, *, recovers: bool) -> None:
        self.recovers = recovers
        self.dead: str | None = None
        self.awaited: set[int] = {0} if recovers else set()
        self.engines = {1: SimpleNamespace(index=1, dead=None)}
        self.sent: list[EngineCoreRequest] = []
        self.sent_to: dict[int, list[EngineCoreRequest]] = {}

    def send_requests(self, index: int, requests: Sequence[EngineCoreRequest]) -> None:
        link = self.engines.get(index)
        if link is None or link.dead:
            raise EngineDeadError(f"no engine {index}")
        self.sent_to.setdefault(index, []).extend(requests)


class FakeEngines:
    """Engines owned by another process, as in one of several API servers."""

    def __init__(self, config: EngineConfig, *, recovers: bool) -> None:
        launcher = f"{ProcessLauncher.__module__}:{ProcessLauncher.__qualname__}"
        self.config = config
        self.plan = PluginPlan((PluginRecord("launcher", "process", launcher),))
        self.model = fake_model()
        self.client = FakeClient(recovers=recovers)
        self.stats = SimpleNamespace(record=self._record)
        self.records: list[StatRecord] = []

    def _record(self, record: StatRecord) -> None:
        self.records.append(record)

    async def replace(self, changes: object) -> None:
        """Replace the engines, as their owner."""


class FrontEnd:
    """A recovery in a front end whose engine 0 ran `NUM_REQUESTS` requests: `requests`, by handle."""

    def __init__(self, cls: type[EngineRecovery], config: EngineConfig, options: Any) -> None:
        self.engines = FakeEngines(config, recovers=cls.restarts(config))
        self.client = self.engines.client
        self.requests = {handle: request(handle) for handle in range(NUM_REQUESTS)}
        streams = [
            FakeStream(each, array("q", range(handle)), is_scheduled=handle > 0)
            for handle, each in self.requests.items()
        ]
        self.streams = FakeStreams(self.client, streams)
        context = RecoveryContext(
            config,
            options=options,
            engines=self.engines,
            events=EngineEvents(),
            streams=self.streams,
        )
        self.recovery = cls(context)

    def die(self) -> set[int]:
        """End engine 0; returns the handles that the recovery accepts."""
        return self._taken(self.recovery.on_death(0, KILLED, dict(self.requests)))

    def move(self) -> set[int]:
        """Replace the engine of the requests by engine 1; otherwise as `die`."""
        return self._taken(self.recovery.on_moved(1, dict(self.requests)))

    def _taken(self, answer: Collection[int]) -> set[int]:
        taken = set(answer or ())
        assert taken <= set(self.requests), "handles of requests that this engine never ran"
        return taken

    def give_up(self) -> None:
        """Give up the restart of engine 0."""
        self.client.awaited.discard(0)
        self.recovery.on_given_up(0, "it died too often")

    @property
    def resumed(self) -> dict[int, EngineCoreRequest]:
        """Requests that were sent again, each once."""
        sent = [
            *self.client.sent,
            *(each for some in self.client.sent_to.values() for each in some),
        ]
        found = {each.handle: each for each in sent}
        assert len(found) == len(sent), "a request was sent twice"
        return found


class EngineRecoveryContract:
    """Subclass in a test module and name the `recovery`; `options` are its own, `config` fields of EngineConfig.

    The recovery runs in a front end whose engines belong to another process: nothing is started here.
    """

    recovery: ClassVar[str | type[EngineRecovery] | None] = None
    options: ClassVar[dict[str, Any]] = {}
    config: ClassVar[dict[str, Any]] = {}

    # ------------------------------------------------------------------ tools, for tests of your own
    def front_end(self) -> FrontEnd:
        """A front end with this recovery."""
        config = EngineConfig(model="fake", **self.config)
        cls, options, _ = resolve_target("engine_recovery", self.recovery, self.options, config)
        return FrontEnd(cls, config, options)

    def _run(self, main: Coroutine[Any, Any, Any]) -> None:
        asyncio.run(main)

    # ------------------------------------------------------------------ the contract
    def test_it_is_a_recovery_that_the_kernel_accepts(self) -> None:
        """It resolves, can be built without an event loop, and reports whether it restarts engines."""
        made = self.front_end().recovery
        assert isinstance(made, EngineRecovery)
        assert type(made).restarts(EngineConfig(model="fake", **self.config)) in (True, False)

    def test_only_coroutines_wait(self) -> None:
        """The event loop calls the others."""
        made = self.front_end().recovery
        for name, function in inspect.getmembers(EngineRecovery, inspect.isfunction):
            is_coroutine = inspect.iscoroutinefunction(getattr(made, name))
            assert is_coroutine == inspect.iscoroutinefunction(function), name

    def test_what_it_takes_over_is_resumed_or_ended_once(self) -> None:
        """Immediately, or at the latest when the restart is given up; other requests are unaffected."""
        front_end = self.front_end()

        async def main() -> None:
            front_end.recovery.listen()
            taken = front_end.die()
            left = set(front_end.requests) - taken
            assert not left & (set(front_end.resumed) | set(front_end.streams.failed))
            front_end.give_up()
            settled = [*front_end.resumed, *front_end.streams.failed]
            assert sorted(settled) == sorted(taken)

        self._run(main())

    def test_a_resumed_request_has_its_delivered_tokens_as_output(self) -> None:
        """Otherwise the stream would repeat them."""
        front_end = self.front_end()

        async def main() -> None:
            front_end.die()
            front_end.give_up()

        self._run(main())
        for handle, sent in front_end.resumed.items():
            original = front_end.requests[handle]
            assert sent.request_id == original.request_id
            assert sent.prompt_token_ids.tolist() == original.prompt_token_ids.tolist()
            assert sent.output_token_ids == list(range(handle)), handle

    def test_a_request_that_ended_meanwhile_stays_ended(self) -> None:
        """For example one whose client disconnected before the death was reported."""
        front_end = self.front_end()
        del front_end.streams.open[1]

        async def main() -> None:
            front_end.die()
            front_end.give_up()

        self._run(main())
        assert 1 not in front_end.resumed

    def test_an_engine_that_ran_nothing_changes_nothing(self) -> None:
        front_end = self.front_end()
        front_end.requests = {}

        async def main() -> None:
            assert front_end.die() == set()
            front_end.give_up()

        self._run(main())
        assert (front_end.resumed, front_end.streams.failed) == ({}, {})

    def test_moved_streams_go_to_the_engine_that_took_the_place(self) -> None:
        """Or they are ended, or left to the kernel, which ends them."""
        front_end = self.front_end()

        async def main() -> None:
            taken = front_end.move()
            settled = [*front_end.resumed, *front_end.streams.failed]
            assert sorted(settled) == sorted(taken)

        self._run(main())
        assert set(front_end.client.sent_to) <= {1}

    def test_an_engine_that_is_back_gets_requests_once_the_trial_is_over(self) -> None:
        """`on_started` returns when no trial is pending there."""
        front_end = self.front_end()

        async def main() -> None:
            front_end.recovery.listen()
            front_end.die()
            before = front_end.resumed
            front_end.client.engines[0] = SimpleNamespace(index=0, dead=None)
            async with asyncio.timeout(10):
                await front_end.recovery.on_started([0])
            assert before.items() <= front_end.resumed.items()

        self._run(main())

    def test_held_requests_are_sent_once_when_an_engine_is_admitted_or_given_up(self) -> None:
        """Requests that ended before are not sent; a recovery that cannot hold any raises EngineDeadError."""
        for event in ("on_admitted", "on_given_up"):
            front_end = self.front_end()
            late = [[request(handle)] for handle in (12, 11, 13)]
            for (each,) in late:
                front_end.streams.open[each.handle] = FakeStream(each)
            self._run(self._hold(front_end, late, event))

    async def _hold(
        self, front_end: FrontEnd, late: Sequence[Sequence[EngineCoreRequest]], event: str
    ) -> None:
        try:
            for requests in late:
                front_end.recovery.hold(requests)
        except EngineDeadError:
            return
        assert not front_end.client.sent, "sent before an engine is there"
        del front_end.streams.open[13]
        front_end.client.awaited.discard(0)
        for _ in range(2):
            if event == "on_admitted":
                front_end.recovery.on_admitted([0])
            else:
                front_end.recovery.on_given_up(0, "it died too often")
        assert [each.handle for each in front_end.client.sent] == [11, 12]

    def test_other_configurations_are_whole_ones(self) -> None:
        """They are checked before the first start."""
        made = self.front_end()
        config = made.engines.config
        for other in type(made.recovery).alternatives(config, PluginManager(discover=False)):
            assert isinstance(other, EngineConfig)
            assert other != config

    def test_it_takes_a_changed_configuration(self) -> None:
        front_end = self.front_end()
        front_end.recovery.on_change(front_end.engines.config.replaced(max_num_seqs=2))

    def test_shutdown_is_idempotent(self) -> None:
        """Also with requests that it holds."""
        front_end = self.front_end()

        async def main() -> None:
            front_end.recovery.listen()
            front_end.die()
            front_end.recovery.shutdown()
            front_end.recovery.shutdown()

        self._run(main())
