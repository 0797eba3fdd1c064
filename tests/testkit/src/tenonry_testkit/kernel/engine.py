"""An engine core of fakes, and the outcome of its requests. Test process, engine's role."""

from __future__ import annotations

from typing import Any

import numpy as np

from tenonry.config import EngineConfig, read
from tenonry.engine.build import build_engine
from tenonry.engine.core import EngineCore
from tenonry.messages import (
    EngineCoreRequest,
    FinishedOutput,
    OutputsByClient,
    ScheduledOutput,
    client_of,
    make_handle,
)
from tenonry.plugin.manager import PluginManager
from tenonry.sampling_params import SamplingParams
from tenonry_testkit.fakes import TokenModel, VirtualClock
from tenonry_testkit.fakes.model import FakeModelHooks

FAKES = "tenonry_testkit.fakes"
GREEDY = SamplingParams(temperature=0)


def fake_config(**values: Any) -> EngineConfig:
    """An EngineConfig whose parts are all fakes; any plugin field may be replaced."""
    return read(
        EngineConfig,
        {
            "model": "fake", "executor": f"{FAKES}:InstantExecutor", "scheduler": f"{FAKES}:ReferenceScheduler",
            "worker": f"{FAKES}:FakeWorker", "io_processor": f"{FAKES}:ByteIOProcessor",
            "load_balancer": f"{FAKES}.load_balancer:TurnsBalancer", "max_num_seqs": 4,
            "max_num_batched_tokens": 16, "max_model_len": 64, "max_round_tokens": 1, **values,
        },
        EngineConfig.model_fields,
    )  # fmt: skip


def make_core(
    *,
    facts: dict[str, Any] | None = None,
    clock: Any = None,
    on_failure: Any = None,
    index: int = 0,
    **values: Any,
) -> EngineCore:
    """Build an engine core in this process. `facts`: of the model, `values`: of the configuration."""
    config = fake_config(**values)
    manager = PluginManager(discover=False)
    manager.register(FakeModelHooks(**(facts or {})))
    plan = manager.plan(config, launcher=False)
    callback = {} if on_failure is None else {"on_failure": on_failure}
    return build_engine(
        config,
        manager.resolve_model(config),
        plan,
        engine_index=index,
        clock=clock or VirtualClock(),
        **callback,
    )


def request(
    handle: int, prompt: Any = (1, 2, 3), *, client: int = 0, **fields: Any
) -> EngineCoreRequest:
    """Return a request; accepts fields of SamplingParams and of EngineCoreRequest."""
    known = {
        name: fields.pop(name) for name in list(fields) if name in SamplingParams.__struct_fields__
    }
    own = fields.pop("stop_ids", ())
    return EngineCoreRequest(
        handle=make_handle(client, handle),
        request_id=fields.pop("request_id", f"r{handle}"),
        prompt_token_ids=np.array(prompt, np.int32),
        sampling_params=SamplingParams(**{"temperature": 0, "max_tokens": 8, **known}),
        stop_token_ids=tuple(own),
        **fields,
    )


class Inbox:
    """The outputs that clients received."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.finished: dict[int, FinishedOutput] = {}
        self.scheduled: dict[int, ScheduledOutput] = {}
        self.stats: list[Any] = []

    def take(self, outputs_by_client: OutputsByClient) -> None:
        for client, outputs in outputs_by_client.items():
            handles = outputs.handles.tolist()
            ids = outputs.token_ids.tolist()
            offsets = outputs.offsets.tolist() or list(range(len(handles) + 1))
            for handle, start, end in zip(handles, offsets[:-1], offsets[1:], strict=True):
                assert client_of(handle) == client
                self.tokens.setdefault(handle, []).extend(ids[start:end])
            for finished in outputs.finished:
                assert finished.handle not in self.finished
                self.finished[finished.handle] = finished
            for event in outputs.scheduled:
                self.scheduled[event.handle] = event
            if outputs.scheduler_stats is not None:
                self.stats.append(outputs.scheduler_stats)

    def run(self, core: EngineCore, steps: int = 500) -> Inbox:
        """Run steps until there is no work."""
        for _ in range(steps):
            if not core.has_work():
                return self
            self.take(core.step()[0])
        raise AssertionError(f"still at work after {steps} steps")


def expected(core: EngineCore, source: EngineCoreRequest) -> list[int]:
    """Tokens of the fake model for this request."""
    made: TokenModel = core.executor.worker.model  # type: ignore[attr-defined]
    return made.complete(
        source.prompt_token_ids.tolist(), source.sampling_params, max_model_len=core.limits.max_model_len,
        stop_ids=source.stop_token_ids, delivered=source.output_token_ids,
    ).token_ids  # fmt: skip
