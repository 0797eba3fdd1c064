"""A KV connector with the torch worker: loaded blocks equal computed ones."""

from __future__ import annotations

import importlib.util
import threading
import time
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
    "log_stats": False,  # tests read the counters of the scheduler
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


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("fail_loads", [0, 2])
def test_what_was_saved_is_loaded_by_the_next_engine(folder, asynchronous, fail_loads):
    """Reliability, fault 26: blocks that could not be loaded are computed."""
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


def test_every_rank_saves_and_loads_its_part(forked_children, folder):
    parallel = "pipeline_parallel_size"
    asynchronous = False
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


# ------------------------------------------------------------------------------------- the connectors that come along
def connectors(tmp_path):
    directory = str(tmp_path / "blocks")
    disk = {"directory": directory, "size": "64MiB"}
    both = {"connectors": "host,disk", "host.size": "64KiB", "disk.directory": directory}
    return {
        "host": {"name": "host", "options": {"size": "64MiB"}},
        "host that drops": {"name": "host", "options": {"size": "40KiB"}},
        "disk": {"name": "disk", "options": disk},
        "disk that deletes": {"name": "disk", "options": {**disk, "size": "40KiB"}},
        "chain": {"name": "chain", "options": both},
    }


@pytest.fixture(scope="module")
def wanted(folder):
    with LLM(model=folder, **SETTINGS) as plain:
        return tokens(plain)


def external_hits(llm):
    return llm.engine_core.scheduler.make_stats().external_prefix_cache_hits


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("name", ["host", "host that drops", "disk", "disk that deletes", "chain"])
def test_tokens_are_the_same_with_it_again_and_after_a_restart(folder, wanted, tmp_path, name):
    connector = connectors(tmp_path)[name]
    hits = []
    for _ in range(2):
        with LLM(model=folder, **SETTINGS, kv_connector=connector) as llm:
            assert tokens(llm) == wanted
            hits.append(external_hits(llm))
            assert tokens(llm) == wanted
            hits.append(external_hits(llm))
            blocks = llm.engine_core.scheduler.blocks
            assert blocks.num_free == blocks.num_total
    whole = 20 + 8 + 0 + 32
    if name == "host":
        assert hits == [0, whole, 0, whole]
    if name in {"disk", "chain"}:  # files are written when there is time
        assert hits[2:] == [whole, whole]
    assert not [thread for thread in threading.enumerate() if "kv-connector" in thread.name]


def test_blocks_are_written_before_the_same_step_asks_for_them(folder, wanted, tmp_path, caplog):
    """There is one row: a request with the prompt of another begins in the step that follows its end."""
    connector = connectors(tmp_path)["host"]
    prompt = {"prompt_token_ids": prompts()[0]}
    with LLM(model=folder, **{**SETTINGS, "max_num_seqs": 1}, kv_connector=connector) as llm:
        outputs = llm.generate([prompt, prompt], GREEDY, use_tqdm=False)
        assert [output.outputs[0].token_ids for output in outputs] == [wanted[0]] * 2
        assert external_hits(llm) == 20
    assert "missing or damaged" not in caplog.text


@pytest.mark.parametrize("name", ["host", "chain"])
@pytest.mark.nightly_after(1)
def test_tokens_are_the_same_when_requests_are_preempted(folder, wanted, tmp_path, name):
    """Twelve blocks of four for four rows."""
    settings = {**SETTINGS, "num_gpu_blocks_override": 12, "max_model_len": 44}
    with LLM(model=folder, **settings, kv_connector=connectors(tmp_path)[name]) as llm:
        preempted = 0
        for _ in range(3):
            assert tokens(llm) == wanted
            preempted += llm.engine_core.scheduler.make_stats().num_preemptions
        assert preempted


def test_tokens_are_the_same_when_files_are_damaged_or_gone(folder, wanted, tmp_path):
    connector = connectors(tmp_path)["disk"]
    with LLM(model=folder, **SETTINGS, kv_connector=connector) as llm:
        tokens(llm)
    files = sorted((tmp_path / "blocks").rglob("*.block"))
    assert len(files) > 12
    for number, path in enumerate(files):
        data = path.read_bytes()
        if number % 3 == 0:
            path.write_bytes(data[: len(data) // 2])
        elif number % 3 == 1:
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with LLM(model=folder, **SETTINGS, kv_connector=connector) as llm:
        assert tokens(llm) == wanted  # what could not be loaded is computed, and saved again
    with LLM(model=folder, **SETTINGS, kv_connector=connector) as llm:
        assert tokens(llm) == wanted
        assert external_hits(llm) == 20 + 8 + 0 + 32


def test_a_reset_of_the_connector_empties_it(folder, wanted, tmp_path):
    for name in ("host", "disk"):
        connector = connectors(tmp_path)[name]
        with LLM(model=folder, **SETTINGS, kv_connector=connector) as llm:
            tokens(llm)
            external_hits(llm)
            assert llm.reset_prefix_cache()
            assert llm.engine_core.kv_connector.reset()
            assert tokens(llm) == wanted
            assert external_hits(llm) == 0
            end = time.monotonic() + 9
            hits = 0
            while not hits and time.monotonic() < end:  # files are written when there is time
                assert tokens(llm) == wanted
                hits = external_hits(llm)
            assert hits


def test_two_ranks_keep_their_parts(forked_children, folder, wanted, tmp_path):
    connector = connectors(tmp_path)["chain"]
    settings = {**SETTINGS, "executor": "mp", "tensor_parallel_size": 2, "kv_connector": connector}
    with LLM(model=folder, **settings) as llm:
        assert tokens(llm) == wanted
        external_hits(llm)
        assert tokens(llm) == wanted
        assert external_hits(llm) == 20 + 8 + 0 + 32
    folders = {path.parents[1].name for path in (tmp_path / "blocks").rglob("*.block")}
    assert folders == {"0-of-2", "1-of-2"}
