"""The engine of the demo model is killed in many steps of a mixed run, and every stream goes on (AF-24)."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from pathlib import Path
from typing import Any

import psutil
import pytest

from tenonry import AsyncLLM, EngineConfig, SamplingParams, StructuredOutput
from tenonry.continuity import budget
from tenonry.sampling_params import OutputKind
from tenonry_testkit.kernel.mortal import set_fuse

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
STRIDE = 3  # a start takes seconds; the kernel's tests kill an engine of fakes in each step
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
    "words": {**GREEDY, "bad_words": ["Lily", " Lily"], "logit_bias": {5: 2.0}},
}


class Told:
    """What a caller was told of one request, in pieces."""

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
        """What is equal in every run."""
        return {
            "text": self.text,
            "ids": self.ids,
            "reasons": self.reasons,
            "logprobs": len(self.logprobs),
            "prompt": len(self.last.prompt_logprobs or ()),
        }


async def run_all(engine: AsyncLLM, turn: int) -> dict[str, Told]:
    told = {name: Told() for name in REQUESTS}

    async def read(name: str) -> None:
        params = SamplingParams(output_kind=OutputKind.DELTA, **REQUESTS[name])
        # No prefix is found that another run has left.
        stream = engine.generate(STORY, params, f"{name} {turn}", cache_salt=f"{turn}")
        async for output in stream:
            told[name].hear(output)

    await asyncio.gather(*map(read, REQUESTS))
    return told


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Start engines of the demo model that a file can kill."""
    monkeypatch.setattr(budget, "MAX_RESTARTS", 1000)
    (tmp_path / "mortal.py").write_text(MORTAL.format(fuse=str(tmp_path / "fuse")))
    made = []

    def begin(**values: Any) -> AsyncLLM:
        config = EngineConfig(
            **{
                "model": "demo",
                "device": "cpu",
                "dtype": "float32",
                "worker": f"{tmp_path / 'mortal.py'}:Mortal",
                **values,
            }
        )
        made.append(AsyncLLM(config))
        return made[-1]

    yield begin
    for engine in made:
        engine.shutdown()


def differences(expected: dict[str, Told], found: dict[str, Told]) -> dict[str, Any]:
    return {
        name: (expected[name].same(), found[name].same())
        for name in REQUESTS
        if expected[name].same() != found[name].same()
        or not all(map(close, expected[name].logprobs, found[name].logprobs))
    }


def close(one: float, other: float) -> bool:
    """Another batch, another order of summing."""
    return math.isclose(one, other, abs_tol=1e-3)


def test_killed_in_many_steps_of_a_mixed_run(start, tmp_path):
    engine = start()
    fuse = tmp_path / "fuse"

    async def main() -> int:
        expected = await run_all(engine, 0)
        for step in itertools.count(step=STRIDE):
            set_fuse(fuse, step)
            found = await run_all(engine, step + 1)
            assert differences(expected, found) == {}, f"killed in step {step}"
            if fuse.exists():
                return step
        return 0

    assert asyncio.run(main()) >= 20


def test_a_killed_rank_takes_no_stream_with_it(start):
    """Tensor parallel 2: the engine ends with its rank, and comes back with two."""
    engine = start(tensor_parallel_size=2, worker="torch")

    async def main() -> tuple[dict[str, Told], dict[str, Told]]:
        expected = await run_all(engine, 0)
        run = asyncio.ensure_future(run_all(engine, 1))
        while engine.num_unfinished_requests < len(REQUESTS):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.001)
        ranks = psutil.Process(engine.engine_pids["engine 0"]).children()
        max(ranks, key=lambda rank: rank.pid).kill()
        return expected, await run

    expected, found = asyncio.run(main())
    assert differences(expected, found) == {}
    assert engine.is_serving
