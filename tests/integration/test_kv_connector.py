"""A KV connector beside the torch worker: what it loads equals what would have been computed."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from tenonry import LLM, SamplingParams
from tenonry_testkit.fakes.connector import memory_store

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[2]
FAMILIES = ROOT / "plugins" / "worker-torch" / "tests" / "worker_families.py"
RANKS = ROOT / "executors" / "multiproc" / "tests" / "rank_connector.py"
SETTINGS = {
    "executor": "uni", "scheduler": "batching", "dtype": "float32", "device": "cpu", "max_num_seqs": 4,
    "max_model_len": 64, "block_size": 4, "skip_tokenizer_init": True, "num_gpu_blocks_override": 40,
    "enable_prefix_caching": False,
}  # fmt: skip
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("worker_families_of_connectors", FAMILIES)
    families = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(families)
    path = tmp_path_factory.mktemp("model")
    families.save("llama", path)
    return str(path)


def prompts():
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(3, 96, (length,), generator=generator).tolist() for length in (21, 9, 3, 33)
    ]


def tokens(llm):
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts()], GREEDY, use_tqdm=False
    )
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("fail_loads", [0, 2])
def test_what_was_saved_is_loaded_by_the_next_engine(folder, asynchronous, fail_loads):
    with LLM(model=folder, **SETTINGS) as plain:
        wanted = tokens(plain)
    name = f"torch {asynchronous} {fail_loads}"
    options = {"store": name, "asynchronous": asynchronous, "fail_loads": fail_loads}
    connector = {"name": "tenonry_testkit.fakes.connector:MemoryConnector", "options": options}
    for _ in range(2):
        with LLM(model=folder, **SETTINGS, kv_connector=connector) as llm:
            assert tokens(llm) == wanted
            assert tokens(llm) == wanted
            blocks = llm.engine_core.scheduler.blocks
            assert blocks.num_free == blocks.num_total
    store = memory_store(name)
    assert store.num_saved == 5 + 2 + 0 + 8
    assert store.num_loaded > 0
    assert store.num_failed == 2 * fail_loads


@pytest.mark.parametrize(
    ("parallel", "asynchronous"),
    [("tensor_parallel_size", True), ("pipeline_parallel_size", False)],
)
def test_every_rank_saves_and_loads_its_part(forked_children, folder, parallel, asynchronous):
    with LLM(model=folder, **SETTINGS) as plain:
        wanted = tokens(plain)
    options = {"store": f"{parallel} {asynchronous}", "asynchronous": asynchronous}
    connector = {"name": f"{RANKS}:RankConnector", "options": options}
    settings = {**SETTINGS, "executor": "mp", parallel: 2, "kv_connector": connector}
    with LLM(model=folder, **settings) as llm:
        assert tokens(llm) == wanted
        assert tokens(llm) == wanted
        blocks = llm.engine_core.scheduler.blocks
        assert blocks.num_free == blocks.num_total
    assert len(memory_store(options["store"]).blocks) == 5 + 2 + 0 + 8
