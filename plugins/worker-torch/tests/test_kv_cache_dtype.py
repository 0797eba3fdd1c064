"""Models whose K and V are stored in 8 bits: a request's results do not depend on its steps or on others, a block is
smaller, and logits stay near.
"""

from __future__ import annotations

import functools
import logging

import pytest
import torch
import worker_families
import worker_tools
from parallel_tools import Ranks
from worker_driver import Driver, Request

from tenonry.config import EngineConfig
from tenonry.engine.kv_plan import plan_kv_cache
from tenonry.errors import ModelError
from tenonry.sampling_params import SamplingParams
from tenonry.step import RowFailure
from tenonry_torch_base.attention.kv_storage import CONFLICTS, STORAGES, Int8
from tenonry_torch_base.conflicts import Setup, refuse_conflicts
from tenonry_worker_torch.kv_groups import GroupLayout
from tenonry_worker_torch.worker import TorchWorker

pytestmark = pytest.mark.slow  # whole models

FEW = ["int8", "fp8"]
# Plain; a window in all layers, and in every other one; keys and values of two sizes; state beside attention.
FAMILIES = ["llama", "mistral", "gemma2", "deepseek_v3", "qwen3_next"]
NUM_LAYERS, KV_HEADS, SIZE = 3, 2, 16  # of the family "llama"
EVERY = range(len(worker_tools.PROMPT_LENGTHS))
WAYS = {
    "beside others": {},
    "in chunks": {"budget": 7},
    "preempted": {"preempt_every": 5},
    "in chunks and preempted": {"budget": 11, "preempt_every": 4},
}


def requests(numbers=EVERY, logprobs=None):
    prompts = worker_tools.prompts()
    sampling = SamplingParams(
        temperature=0.0, max_tokens=worker_tools.OUTPUT_LENGTH, ignore_eos=True, logprobs=logprobs
    )
    return [
        Request(number + 1, prompts[number], sampling, max_tokens=worker_tools.OUTPUT_LENGTH)
        for number in numbers
    ]


def serve(answer, wanted, **way):
    Driver(answer, max_num_seqs=6, num_blocks=96, block_size=4, **way).run(wanted)
    return [one.output for one in wanted]


@functools.cache
def runner(family, kind, backend="cpu"):
    module = worker_families.build(family)
    model = worker_tools.loaded(module, backend=backend, kv_cache_dtype=kind)
    return worker_tools.runner(model, groups=GroupLayout(1 if model.states is None else 2))


@functools.cache
def alone(family, kind):
    answer = runner(family, kind).answer
    return [serve(answer, requests([number]))[0] for number in EVERY]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow
@pytest.mark.nightly_after(6)
def test_a_request_gets_the_same_tokens_alone_and_in_any_way(family, way):
    found = serve(runner(family, "int8").answer, requests(), **WAYS[way])
    assert found == alone(family, "int8")


def test_floats_of_8_bits_do_so_as_well():
    found = serve(runner("llama", "fp8", "sdpa").answer, requests(), budget=7, preempt_every=5)
    assert found == alone("llama", "fp8")


@pytest.mark.parametrize(("kind", "most"), [("int8", 0.6), ("fp8", 1.8)])
def test_logits_stay_near(kind, most):
    """Log-probabilities of 64 tokens behind each prompt, of a model of random weights: 0.30 and 0.88 were measured."""
    served = {kept: requests(logprobs=64) for kept in ("auto", kind)}
    for kept, wanted in served.items():
        serve(runner("llama", kept).answer, wanted)
    errors = []
    for pair in zip(*served.values(), strict=True):
        exact, near = (dict(zip(*map(list, one.logprobs[0][:2]), strict=True)) for one in pair)
        errors += [abs(near[token] - exact[token]) for token in exact.keys() & near.keys()]
    assert len(errors) > 6 * 48
    assert 0 < max(errors) < most


@pytest.mark.parametrize("kind", FEW)
def test_ranks_that_share_layers_keep_the_same(tmp_path, kind):
    """Each has heads of its own, and a scale belongs to one head."""
    worker_families.save("llama", tmp_path)
    ranks = Ranks(tmp_path, 2, kv_cache_dtype=kind)
    assert serve(ranks.answer, requests(), budget=9) == alone("llama", kind)
    ranks.close()


def test_nan_in_8_bits_fails_its_request_alone():
    module = worker_families.build("llama")
    model = worker_tools.loaded(module, kv_cache_dtype="int8")
    wanted = alone("llama", "int8")
    used = {
        token for one, out in zip(requests(), wanted, strict=True) for token in one.prompt + out
    }
    poison = next(token for token in range(95, 2, -1) if token not in used)
    module.get_input_embeddings().weight.data[poison] = float("nan")
    bad = Request(99, [7, poison, 9], max_tokens=10)
    driver = Driver(
        worker_tools.runner(model, num_blocks=60).answer,
        max_num_seqs=6,
        num_blocks=60,
        block_size=4,
    )
    found = driver.run([bad, *requests()])
    assert bad.failure == RowFailure.NUMERICAL
    assert [one.output for one in found[1:]] == wanted
    assert [one.output for one in driver.run(requests())] == wanted  # some in its blocks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama")
    worker_families.save("llama", path)
    return path


@pytest.mark.parametrize(("dtype", "at_least"), [("float32", 3.5), ("bfloat16", 1.75)])
@pytest.mark.parametrize("kind", FEW)
@pytest.mark.slow
@pytest.mark.nightly_after(1)
def test_as_many_times_more_tokens_fit(folder, kind, dtype, at_least, caplog):
    """Heads of 16 numbers: 18 bytes of 64, or of 32. The same is reported before and after loading."""

    def planned(kind):
        context = worker_tools.context(
            folder, kv_cache_dtype=kind, dtype=dtype, kv_cache_memory_bytes=1 << 20, block_size=16
        )
        worker = TorchWorker(context)
        facts = worker.examine()
        worker.load()
        groups = tuple(worker.kv_cache_groups())
        assert facts.groups == groups
        plan = plan_kv_cache([groups], [worker.available_memory()], context.config, 64)
        worker.initialize_cache(plan)
        worker.shutdown()
        return plan.num_slots, groups[0].bytes_per_token, facts.features

    slots, per_token, features = planned("auto")
    assert "kv_cache_dtype" not in features
    with caplog.at_level(logging.INFO):
        more, kept, features = planned(kind)
    assert features["kv_cache_dtype"] == kind
    assert kept == NUM_LAYERS * 2 * KV_HEADS * (SIZE + 2)
    assert more >= at_least * slots
    line = f"KV cache in {kind}: {kept} bytes per token in place of {per_token} in {dtype}"
    assert line in caplog.text


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_they_are_kept_so_on_any_device(device):
    config = EngineConfig(model="m", kv_cache_dtype="int8")
    refuse_conflicts([CONFLICTS], Setup(config, None, torch.device(device), torch.float32))


class Forgets(Int8):
    """Reads half of the written values."""

    def unpacked(self, kept, out):
        return super().unpacked(kept, out).mul_(0.5)


def test_the_self_check_refuses_a_cache_that_reads_otherwise_than_it_writes(monkeypatch):
    """Everything before was compared with floats in the cache."""
    monkeypatch.setitem(STORAGES, "int8", Forgets)
    with pytest.raises(ModelError, match="fails the self check"):
        worker_tools.loaded(worker_families.build("llama"), kv_cache_dtype="int8")
