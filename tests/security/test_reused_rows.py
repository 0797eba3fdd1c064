"""Reused rows hold nothing of their previous request (class O).

Requests with all features are admitted, aborted, preempted and reordered at random, with drafts or several steps in
flight, while every column of a free row holds remains of other requests. Each request gets the tokens and
log-probabilities of its solo run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import save_file

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "integration"))
sys.path.append(str(Path(__file__).parents[2] / "plugins" / "worker-torch" / "tests"))

import shallow_demo
import state_families
import worker_families
from poisoned_parts import SWITCH
from row_columns import KEYED, LISTS, RESET, columns_of

from tenonry.client.start import resolve_front_end
from tenonry.config import EngineConfig, read
from tenonry.engine.build import build_engine
from tenonry.messages import EngineCoreRequest, OutputsByClient
from tenonry.outputs import FinishReason
from tenonry.sampling_params import SamplingParams, StructuredOutput
from tenonry.step import Adapter
from tenonry_testkit.tiers import nightly_unless

pytestmark = pytest.mark.timeout(120)
WITH_STATES = [name for name in state_families.FAMILIES if name in {"lfm2", "mamba2"}]
NUM_ROWS = 7
BLOCK = 8
NUM_SEEDS = 2
NUM_COLUMNS = 50
OF_OTHER_MODELS = {"GroupTable.count", "GroupTable.past", "Slabs._slab", "WindowTables._capacity"}
STOPS = tuple(range(30, 2000, 17))  # some of what is sampled
BAD_WORDS = ((400,), (351, 410))
FEATURES: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "logprobs": 2},
    {"temperature": 0.9, "seed": 3, "top_p": 0.8},
    {"temperature": 1.2, "seed": 4, "top_k": 9},
    {"temperature": 1.1, "seed": 5, "min_p": 0.1},
    {"temperature": 0, "prompt_logprobs": 2},
    {"temperature": 0, "presence_penalty": 1.5, "frequency_penalty": 0.7},
    {"temperature": 0, "repetition_penalty": 1.6},
    {"temperature": 0, "logit_bias": {400: 9.0, 401: 7.0}},
    {"temperature": 0, "allowed_token_ids": [350, 351, 400, 410, 411, 412]},
    {"temperature": 0, "min_tokens": 9},
    {"temperature": 0, "min_tokens": 9, "allowed_token_ids": list(STOPS[:2])},  # no token is left
    {"temperature": 0.7, "seed": 8, "structured_output": StructuredOutput(regex="[a-d ]{6,30}")},
    {"temperature": 0, "structured_output": StructuredOutput(choice=("yes yes", "no no no no"))},
]


@dataclass
class Made:
    """The answer to a request: tokens, their log-probabilities, those of the prompt by position, and the end."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    prompt: dict[int, Any] = field(default_factory=dict)
    reason: FinishReason | None = None
    error: str | None = None

    def cut(self, count: int) -> Made:
        """The first `count` tokens alone."""
        return Made(self.tokens[:count], self.logprobs[:count])


class Inbox:
    """Outputs of one client, by handle."""

    def __init__(self) -> None:
        self.made: dict[int, Made] = {}

    def take(self, outputs_by_client: OutputsByClient) -> None:
        for outputs in outputs_by_client.values():
            handles = outputs.handles.tolist()
            offsets = outputs.offsets.tolist() or list(range(len(handles) + 1))
            for handle, begin, end in zip(handles, offsets[:-1], offsets[1:], strict=True):
                self.made[handle].tokens += outputs.token_ids[begin:end].tolist()
            if (found := outputs.logprobs) is not None:
                for line, place in enumerate(found.row.tolist()):
                    columns = (found.token_ids, found.logprobs, found.rank)
                    self.made[handles[place]].logprobs.append(
                        [each[line].tolist() for each in columns]
                    )
            for part in outputs.prompt_logprobs:
                made = self.made[outputs.prompt_logprobs_handles[part.row]]
                for line in range(len(part.rank)):
                    columns = (part.token_ids, part.logprobs, part.rank)
                    made.prompt[part.start + line] = [each[line].tolist() for each in columns]
            for finished in outputs.finished:
                made = self.made[finished.handle]
                made.reason, made.error = finished.reason, finished.error


def saved_adapter(folder: Path, number: int) -> str:
    """Write an adapter that changes answers of the demo model; returns its folder."""
    config = json.loads((shallow_demo.DEMO / "config.json").read_text("utf-8"))
    size = config["hidden_size"]
    heads = config["num_attention_heads"] * config.get(
        "head_dim", size // config["num_attention_heads"]
    )
    generator = torch.Generator().manual_seed(number)
    stem = "base_model.model.model.layers.0.self_attn.q_proj"
    weights = {
        f"{stem}.lora_A.weight": torch.randn(4, size, generator=generator) * 0.3,
        f"{stem}.lora_B.weight": torch.randn(heads, 4, generator=generator) * 0.3,
    }
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    text = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(text))
    return str(folder)


class Engine:
    """An engine in this process."""

    def __init__(self, model: Path, **settings: Any) -> None:
        fields = {
            "model": str(model), "device": "cpu", "dtype": "float32", "max_num_seqs": NUM_ROWS, "max_model_len": 128,
            "block_size": BLOCK, "worker": "poisoned_parts:PoisonedWorker", "max_num_batched_tokens": 48,
            "scheduler": "poisoned_parts:PoisonedScheduler", "scheduling_policy": "priority",
            "num_gpu_blocks_override": 30,
        }  # fmt: skip
        config = read(EngineConfig, fields | settings, EngineConfig.model_fields)
        _, plan, model_info = resolve_front_end(config, launcher=False)
        self.core = build_engine(config, model_info, plan)
        self.vocab_size = model_info.vocab_size
        self.adapters: list[Adapter | None] = [None]
        self.inbox = Inbox()

    def load(self, name: str, path: str) -> None:
        self.core.call_workers("add_lora", [name, path])
        names = self.core.call_workers("list_loras")[0]
        self.adapters.append(Adapter(*names[-1].rsplit("@", 1)))

    def add(self, source: EngineCoreRequest) -> None:
        self.inbox.made[source.handle] = Made()
        assert self.core.add_request(source) is None

    def step(self) -> None:
        self._poison_validator()
        self.inbox.take(self.core.step()[0])

    def _poison_validator(self) -> None:
        ((_, validator),) = self.core.observers
        columns = columns_of(validator, NUM_ROWS)
        handle = next(each.values for each in columns if each.name == "BatchState.handle")
        SWITCH.poison(validator, NUM_ROWS, np.flatnonzero(handle == 0).tolist())

    def alone(self, source: EngineCoreRequest) -> Made:
        self.add(source)
        while self.core.has_work():
            self.step()
        return self.inbox.made.pop(source.handle)


@contextmanager
def serving(model: Path, **settings: Any) -> Iterator[Engine]:
    made = Engine(model, **settings)
    try:
        yield made
    finally:
        SWITCH.rng = None
        made.core.shutdown()


def requests(
    engine: Engine, features: list[dict[str, Any]], rng: np.random.Generator
) -> list[EngineCoreRequest]:
    """Two requests per feature. Prompts repeat themselves, so that the drafter finds matches."""
    made = []
    is_large = engine.vocab_size > 500
    for number, fields in enumerate([*features, *features]):
        piece = rng.integers(30, engine.vocab_size - 1, int(rng.integers(1, 7)))
        prompt = np.tile(piece, int(rng.integers(1, 8))).astype(np.int32)
        params = SamplingParams(**{"max_tokens": int(rng.integers(9, 20)), **fields})
        source = EngineCoreRequest(
            handle=1000 + number,
            request_id=str(number),
            prompt_token_ids=prompt,
            sampling_params=params,
            stop_token_ids=STOPS if number % 3 and is_large else (),
            bad_words=BAD_WORDS if number % 5 == 4 and is_large else (),
            priority=int(rng.integers(0, 3)),
            cache_salt=str(number % 4),
            adapter=engine.adapters[number % len(engine.adapters)],
        )
        made.append(source)
    return made


def run_all(engine: Engine, sources: list[EngineCoreRequest], rng: np.random.Generator) -> set[int]:
    """Admit in bursts, abort and preempt at random; returns the handles of aborted requests."""
    waiting = [sources[place] for place in rng.permutation(len(sources))]
    aborted: set[int] = set()
    while waiting or engine.core.has_work():
        is_idle = not engine.core.has_work()
        if waiting and (is_idle or rng.random() < 0.15):
            for _ in range(int(rng.integers(1, 9))):
                if waiting:
                    engine.add(waiting.pop())
        if rng.random() < 0.04:
            running = [handle for handle, made in engine.inbox.made.items() if made.reason is None]
            chosen = [handle for handle in running if rng.random() < 0.2 and handle not in aborted]
            engine.core.abort_requests(chosen)
            aborted.update(chosen)
        if rng.random() < 0.04:
            engine.core.reset_prefix_cache(reset_running_requests=True)
        engine.step()
    return aborted


def check(engine: Engine, features: list[dict[str, Any]], seed: int) -> int:
    """Compare random traffic with solo runs; returns how often tokens were drafted in the former."""
    rng = np.random.default_rng(seed)
    sources = requests(engine, features, rng)
    SWITCH.rng = None
    alone = {source.handle: engine.alone(source) for source in sources}
    reasons = {made.reason for made in alone.values()}
    assert (
        reasons == {FinishReason.STOP, FinishReason.LENGTH, FinishReason.ERROR} or len(features) < 9
    )
    engine.core.scheduler.make_stats()
    for _ in range(2):
        SWITCH.rng = rng
        aborted = run_all(engine, sources, rng)
        for source in sources:
            made = engine.inbox.made.pop(source.handle)
            expected = alone[source.handle]
            ends_alike = (made.reason, made.error) == (expected.reason, expected.error)
            assert ends_alike or source.handle in aborted, source
            if source.handle in aborted or made.error:  # in the middle of a step of several tokens
                expected = expected.cut(len(made.tokens))
                made = made.cut(len(expected.tokens))
            assert made == expected, source
    return int(engine.core.scheduler.make_stats().num_drafts)


def answers_differ(engine: Engine) -> bool:
    """Each adapter changes the answer to a prompt."""
    source = requests(engine, FEATURES[:1], np.random.default_rng(0))[0]
    answers = [engine.alone(replace(source, adapter=each)).tokens for each in engine.adapters]
    return len(answers) == len({tuple(tokens) for tokens in answers})


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Path:
    return shallow_demo.save(tmp_path_factory.mktemp("rows") / "model", num_layers=2)


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize(
    ("depth", "settings"), [(1, {"drafter": "ngram"}), (3, {})], ids=["drafts", "in flight"]
)
@pytest.mark.parametrize("seed", nightly_unless(lambda seed: seed == 0, range(NUM_SEEDS)))
def test_a_row_holds_nothing_of_the_request_before(demo, tmp_path, depth, settings, seed):
    SWITCH.depth = depth
    with serving(demo, max_loras=2, **settings) as engine:
        for number, name in enumerate(["one", "two"]):
            engine.load(name, saved_adapter(tmp_path / name, number))
        assert answers_differ(engine)
        assert bool(check(engine, FEATURES, seed)) == (depth == 1)
    assert (KEYED | {*RESET, *LISTS}) - SWITCH.names <= OF_OTHER_MODELS
    assert len(SWITCH.names) >= NUM_COLUMNS


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("family", [*WITH_STATES, "mistral", "gemma3"])
def test_a_row_starts_without_the_state_of_the_request_before(family, tmp_path):
    """Recurrent states and contiguous copies of K/V. Rounding depends on the batch; no greedy choice is close."""
    SWITCH.depth = 2
    worker_families.save(family, tmp_path / "model")
    with serving(tmp_path / "model", batch_invariant=False, num_gpu_blocks_override=60) as engine:
        check(engine, [{"temperature": 0}] * 6, 1)
