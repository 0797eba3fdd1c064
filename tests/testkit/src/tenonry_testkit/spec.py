"""The engine simulated by a harness, and its requirements on the tested parts. Test process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import starmap
from typing import Any, Protocol

import msgspec

from tenonry.config import EngineConfig
from tenonry.interfaces.kv_connector import KVConnector
from tenonry.interfaces.worker import WorkerContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup, sequence_pages
from tenonry.sampling_params import SamplingParams
from tenonry.step import Adapter, ModelRunnerOutput, SchedulerOutput, StepFuture
from tenonry_testkit.fakes.model import fake_model
from tenonry_testkit.fakes.tokens import Completion, TokenModel
from tenonry_testkit.fakes.worker import FakeWorker
from tenonry_testkit.fakes.worker_options import FakeWorkerOptions, fake_group


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HarnessSpec:
    """The engine around a scheduler. Sizes are small, so that every limit is reached within a few steps.

    `depth`: steps in flight. `windows`: one entry per KV group, as in `FakeWorkerOptions`. `num_state_slots`: snapshots
    of recurrent groups. `round_tokens`: maximum tokens of a row in one step, with one step in flight and tokens fed
    back; `short_rounds`, `holds_back_stop_ids`: as in `FakeWorkerOptions`. `grammar_asks`: number of requests for a
    grammar until it is ready. `config`: further fields of EngineConfig. The pool holds exactly one sequence of
    `max_model_len` unless `num_blocks` is set.
    """

    depth: int = 1
    feeds_back: bool = True
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 16
    max_model_len: int = 32
    block_size: int = 4
    num_blocks: int = 0
    windows: tuple[int, ...] = (0,)
    num_state_slots: int = 0
    round_tokens: int = 1
    short_rounds: int = 0
    holds_back_stop_ids: bool = True
    grammar_asks: int = 1
    enable_prefix_caching: bool = True
    seed: int = 0
    vocab_size: int = 64
    config: tuple[tuple[str, Any], ...] = ()

    @property
    def max_round_tokens(self) -> int:
        """Limit passed to the scheduler by an engine without a KV connector."""
        return self.round_tokens if self.depth == 1 and self.feeds_back else 1

    def token_model(self) -> TokenModel:
        """Model of the fake worker, which is the oracle too."""
        return TokenModel(
            self.vocab_size, self.seed, self.windows, holds_back_stop_ids=self.holds_back_stop_ids
        )

    def engine_config(self) -> EngineConfig:
        return EngineConfig(
            **{
                "model": "fake",
                "max_num_seqs": self.max_num_seqs,
                "max_num_batched_tokens": self.max_num_batched_tokens,
                "max_model_len": self.max_model_len,
                "enable_prefix_caching": self.enable_prefix_caching,
                **dict(self.config),
            }
        )

    def least_blocks(self, groups: Sequence[KVCacheGroup] = ()) -> int:
        """Blocks of one sequence of `max_model_len`."""
        groups = groups or tuple(starmap(fake_group, enumerate(self.windows)))
        return sequence_pages(
            groups, self.max_model_len, self.block_size, self.max_num_batched_tokens
        )

    def kv_cache(self, groups: Sequence[KVCacheGroup] = ()) -> KVCacheConfig:
        """Return the planned cache; `groups`: as reported by a real worker."""
        groups = tuple(groups) or tuple(starmap(fake_group, enumerate(self.windows)))
        return KVCacheConfig(
            num_blocks=self.num_blocks or self.least_blocks(groups),
            block_size=self.block_size,
            groups=groups,
            max_model_len=self.max_model_len,
            num_state_slots=self.num_state_slots,
        )


CRAMPED = HarnessSpec(
    max_num_seqs=3, max_num_batched_tokens=6
)  # its pool holds one sequence of full length
ROOMY = HarnessSpec(max_num_seqs=4, max_num_batched_tokens=16, num_blocks=40)


class Oracle(Protocol):
    """Computes the output of a request that runs alone."""

    def complete(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        max_model_len: int,
        stop_ids: Sequence[int] = (),
        adapter: Adapter | None = None,
        delivered: Sequence[int] = (),
    ) -> Completion:
        """Return the output tokens after the `delivered` ones, and the end."""
        ...


class StepRunner(Protocol):
    """A worker, or an executor."""

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput | StepFuture:
        """Run one step."""
        ...


def travelled(metadata: Any) -> Any:
    """Return connector metadata after a round trip through a message; raises for unserialisable values."""
    return None if metadata is None else msgspec.msgpack.decode(msgspec.msgpack.encode(metadata))


def ready_fake_worker(spec: HarnessSpec, connector: KVConnector | None = None) -> FakeWorker:
    """Return a fake worker with its cache allocated."""
    options = FakeWorkerOptions(
        seed=spec.seed,
        vocab_size=spec.vocab_size,
        windows=spec.windows,
        feeds_back=spec.feeds_back,
        grammar_asks=spec.grammar_asks,
        short_rounds=spec.short_rounds,
        holds_back_stop_ids=spec.holds_back_stop_ids,
    )
    worker = FakeWorker(
        WorkerContext(
            spec.engine_config(),
            fake_model(vocab_size=spec.vocab_size),
            max_model_len=spec.max_model_len,
            options=options,
            kv_connector=connector,
        )
    )
    worker.load()
    worker.initialize_cache(spec.kv_cache())
    return worker
