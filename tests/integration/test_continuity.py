"""The engine of the demo model is killed in each step of a mixed run, and every stream continues (AF-24)."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import save_file

from tenonry import AsyncLLM, EngineConfig, SamplingParams, StructuredOutput
from tenonry.sampling_params import OutputKind
from tenonry.step import Adapter
from tenonry_testkit.kernel.mortal import set_fuse
from tenonry_testkit.tiers import nightly_unless

pytestmark = [
    pytest.mark.usefixtures("one_thread", "forked_children"),
    pytest.mark.timeout(300),
    pytest.mark.slow,
]
MORTAL = """
from pathlib import Path

from tenonry_testkit.kernel.mortal import burn_fuse
from tenonry_worker_torch.worker import TorchWorker

class Mortal(TorchWorker):
    def execute_model(self, output):
        if len(output.row):
            burn_fuse(Path({fuse!r}))
        return super().execute_model(output)
"""
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,6}$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
NUM_LAYERS = 4  # of the demo model
HIDDEN_SIZE = 256
STORY = "Once upon a time there was a little girl. "
GREEDY = {"temperature": 0.0, "max_tokens": 20}
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "max_tokens": 20}
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "seeded": {**SAMPLED, "seed": 7},
    "three": {**SAMPLED, "seed": 8, "n": 3},
    "penalties": {
        **GREEDY,
        "presence_penalty": 1.5,
        "frequency_penalty": 0.8,
        "repetition_penalty": 1.3,
    },
    "stop": {**GREEDY, "stop": ["named Lily", "went"]},
    "logprobs": {**GREEDY, "logprobs": 3},
    "prompt": {**SAMPLED, "seed": 9, "logprobs": 1, "prompt_logprobs": 2},
    "least": {**SAMPLED, "seed": 10, "min_tokens": 18},
    "schema": {
        **GREEDY,
        "max_tokens": 40,
        "structured_output": StructuredOutput(json=json.dumps(SCHEMA)),
    },
    "regex": {
        **SAMPLED,
        "seed": 11,
        "structured_output": StructuredOutput(regex=r"[A-Z][a-z]{2,5} \d{3}"),
    },
    "first": {**SAMPLED, "seed": 13, "top_k": 20, "min_p": 0.05},
    "words": {**GREEDY, "bad_words": ["Lily", " Lily"], "logit_bias": {5: 2.0}},
    "first adapter": GREEDY,
    "second adapter": {**SAMPLED, "seed": 12},
}
ADAPTERS = {"first adapter": "first", "second adapter": "second"}


class Told:
    """Results of one request as received by a caller, in pieces."""

    def __init__(self) -> None:
        self.text: dict[int, str] = {}
        self.ids: dict[int, list[int]] = {}
        self.reasons: dict[int, tuple[str, Any]] = {}
        self.logprobs: list[float] = []
        self.last: Any = None

    def hear(self, output: Any) -> None:
        self.last = output
        for each in output.outputs:
            self.text[each.index] = self.text.get(each.index, "") + each.text
            self.ids.setdefault(each.index, []).extend(each.token_ids)
            if each.finish_reason is not None:
                assert each.index not in self.reasons
                self.reasons[each.index] = (each.finish_reason, each.stop_reason)
            pairs = zip(each.token_ids, each.logprobs or (), strict=False)
            self.logprobs += [entry[token_id].logprob for token_id, entry in pairs]

    def same(self) -> dict[str, Any]:
        """The part that is equal in every run."""
        return {
            "text": self.text,
            "ids": self.ids,
            "reasons": self.reasons,
            "logprobs": len(self.logprobs),
            "prompt": len(self.last.prompt_logprobs or ()),
        }


async def run_all(
    engine: AsyncLLM, turn: int, has_begun: asyncio.Event | None = None
) -> dict[str, Told]:
    """Run all requests to their ends. `has_begun` is set when each has an output, whether it has ended or not."""
    told = {name: Told() for name in REQUESTS}
    pairs = [text.rpartition("@") for text in await engine.list_loras()]
    adapters = {name: Adapter(name, digest) for name, _, digest in pairs}

    async def read(name: str) -> None:
        params = SamplingParams(output_kind=OutputKind.DELTA, **REQUESTS[name])
        fields: dict[str, Any] = {"cache_salt": f"{turn}"}  # no prefix of another run is found
        if name in ADAPTERS:
            fields["adapter"] = adapters[ADAPTERS[name]]
        stream = engine.generate(STORY, params, f"{name} {turn}", **fields)
        async for output in stream:
            told[name].hear(output)
            if has_begun is not None and all(each.last for each in told.values()):
                has_begun.set()

    await asyncio.gather(*map(read, REQUESTS))
    return told


async def begun(engine: AsyncLLM, turn: int) -> asyncio.Future[dict[str, Told]]:
    """`run_all` when each request has an output."""
    has_begun = asyncio.Event()
    run = asyncio.ensure_future(run_all(engine, turn, has_begun))
    await has_begun.wait()
    return run


def write_adapter(folder: Path, seed: int) -> str:
    """An adapter of the demo model as peft saves them, with random weights that change its answers."""
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings), "utf-8")
    random = np.random.default_rng(seed)
    weights = {}
    for layer in range(NUM_LAYERS):
        place = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        down = random.normal(0.0, 0.4, (4, HIDDEN_SIZE))
        up = random.normal(0.0, 0.4, (HIDDEN_SIZE, 4))
        weights[f"{place}.lora_A.weight"] = down.astype(np.float32)
        weights[f"{place}.lora_B.weight"] = up.astype(np.float32)
    save_file(weights, folder / "adapter_model.safetensors")
    return str(folder)


async def add_adapters(engine: AsyncLLM, folder: Path) -> None:
    for seed, name in enumerate(ADAPTERS.values()):
        await engine.add_lora(name, write_adapter(folder / name, seed))


@pytest.fixture
def start(tmp_path: Path):
    """Start engines of the demo model that a file can kill."""
    (tmp_path / "mortal.py").write_text(MORTAL.format(fuse=str(tmp_path / "fuse")))
    made = []

    def begin(**values: Any) -> AsyncLLM:
        config = EngineConfig(
            **{
                "model": "demo",
                "device": "cpu",
                "dtype": "float32",
                "max_loras": 2,
                "worker": f"{tmp_path / 'mortal.py'}:Mortal",
                "engine_recovery": {"name": "resume", "options": {"max_restarts": 1000}},
                **values,
            }
        )
        made.append(AsyncLLM(config))
        return made[-1]

    yield begin
    for engine in made:
        engine.shutdown()


def close(one: float, other: float) -> bool:
    """Ranks add up their sums in an order of their own."""
    return math.isclose(one, other, abs_tol=1e-3)


def differences(
    expected: dict[str, Told],
    found: dict[str, Told],
    is_same: Callable[[float, float], bool] = operator.eq,
) -> dict[str, Any]:
    """Differing tokens, texts or ends, or log-probabilities: by one bit, unless `is_same` allows more."""
    return {
        name: (expected[name].same(), found[name].same())
        for name in REQUESTS
        if expected[name].same() != found[name].same()
        or not all(map(is_same, expected[name].logprobs, found[name].logprobs))
    }


@pytest.mark.nightly
def test_killed_in_each_step_of_a_mixed_run(start, tmp_path):
    engine = start()
    fuse = tmp_path / "fuse"

    async def main() -> int:
        await add_adapters(engine, tmp_path)
        expected = await run_all(engine, 0)
        assert expected["first adapter"].ids != expected["greedy"].ids
        for step in itertools.count():
            set_fuse(fuse, step)
            found = await run_all(engine, step + 1)
            assert differences(expected, found) == {}, f"killed in step {step}"
            if fuse.exists():
                return step
        return 0

    assert asyncio.run(main()) >= 20


@pytest.mark.nightly
@pytest.mark.parametrize("size", nightly_unless(lambda size: size == 1, [1, 2]))
def test_one_that_stands_by_takes_over_in_a_mixed_run(start, tmp_path, size):
    """With one rank and with two; it has the adapters that were added before it was built, and after (AF-28)."""
    engine = start(tensor_parallel_size=size, worker="torch", standby_engines=1)
    stands_by = engine.recovery.owner.standbys.ready

    async def main() -> tuple[dict[str, Told], list[dict[str, Told]]]:
        await add_adapters(engine, tmp_path)
        expected = await run_all(engine, 0)
        found = []
        for turn in (1, 2):
            while not stands_by:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.01)
            run = await begun(engine, turn)
            psutil.Process(engine.engine_pids["engine 0"]).kill()
            found.append(await run)
        return expected, found

    expected, found = asyncio.run(main())
    is_same = operator.eq if size == 1 else close
    assert [differences(expected, each, is_same) for each in found] == [{}, {}]


def test_a_killed_rank_takes_no_stream_with_it(start, tmp_path):
    """Tensor parallel 2: the engine ends with its rank, and comes back with two."""
    engine = start(tensor_parallel_size=2, worker="torch")

    async def main() -> tuple[dict[str, Told], dict[str, Told]]:
        await add_adapters(engine, tmp_path)
        expected = await run_all(engine, 0)
        run = await begun(engine, 1)
        ranks = psutil.Process(engine.engine_pids["engine 0"]).children()
        max(ranks, key=lambda rank: rank.pid).kill()
        return expected, await run

    expected, found = asyncio.run(main())
    assert differences(expected, found, close) == {}
    assert engine.is_serving


@pytest.mark.nightly
def test_replaced_there_and_back_in_a_mixed_run(start, tmp_path, caplog, monkeypatch):
    """The scheduler changes, and changes back, while streams of every kind run (AF-27)."""
    engine = start(worker="torch")
    renew = engine.events.on_join
    runs: list[asyncio.Future[dict[str, Told]]] = []

    async def renew_and_ask(fleet: object, indexes: list[int]) -> None:
        """The new engine is ready; requests begin in the one before it."""
        await renew(fleet, indexes)
        runs.append(asyncio.ensure_future(run_all(engine, len(runs) + 1)))
        outputs = engine.output_processor
        greedy = f"greedy {len(runs)}"
        while (stream := outputs.get(greedy)) is None or stream.num_generated < 4:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0)

    async def main() -> tuple[dict[str, Told], list[dict[str, Told]]]:
        await add_adapters(engine, tmp_path)
        expected = await run_all(engine, 0)
        monkeypatch.setattr(engine.events, "on_join", renew_and_ask)
        for scheduler in ("static", "batching"):
            await engine.replace_engines(scheduler=scheduler)
            await runs[-1]
        return expected, [await run for run in runs]

    expected, found = asyncio.run(main())
    assert [differences(expected, each) for each in found] == [{}, {}]
    moved = re.findall(r"engine 0: resumed (\d+) requests", caplog.text)
    assert len(moved) == 2
    assert min(map(int, moved)) >= 8
