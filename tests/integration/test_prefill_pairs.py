"""One engine prefills, another decodes, two ranks each: tokens of an engine alone, and ends that reach both (KV-1)."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

import pytest
import torch

from tenonry import SamplingParams
from tenonry.config import EngineConfig
from tenonry.interfaces.launcher import Death
from tenonry.transport.keys import CurveKeys
from tenonry_scale_out.pairs import SUFFIX, PairedLLM, PrefillPolicy

pytestmark = pytest.mark.usefixtures("one_thread", "forked_children")
FAMILIES = Path(__file__).parents[2] / "plugins" / "worker-torch" / "tests" / "worker_families.py"
PROMPT_TOKENS = 90


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("worker_families_of_pairs", FAMILIES)
    families = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(families)
    folder = tmp_path_factory.mktemp("model")
    families.save("llama", folder)
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(CurveKeys.generate().encode())
    keys.chmod(0o600)
    return {
        "model": str(folder), "dtype": "float32", "device": "cpu", "max_num_seqs": 4, "max_model_len": 128,
        "block_size": 4, "skip_tokenizer_init": True, "num_gpu_blocks_override": 80, "auth_key_file": str(keys),
        "data_parallel_size": 2, "kv_connector": {"name": "peer"}, "max_num_batched_tokens": 8,
        "load_balancer": {"name": "prefill-decode"}, "enable_prefix_caching": False, "log_stats": False,
    }  # fmt: skip


def prompt_of(number):
    generator = torch.Generator().manual_seed(number)
    ids = torch.randint(3, 96, (PROMPT_TOKENS,), generator=generator).tolist()
    return {"prompt_token_ids": ids}


async def complete(llm, number, name, **fields):
    params = fields.pop(
        "params", SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=1)
    )
    output = None
    async for output in llm.generate(prompt_of(number), params, name, **fields):  # noqa: B007
        pass
    return output


def logprobs_of(output):
    (found,) = output.outputs
    return [
        line[token].logprob for line, token in zip(found.logprobs, found.token_ids, strict=True)
    ]


def run(settings, test, **changes):
    llm = PairedLLM(EngineConfig(**{**settings, **changes}), PrefillPolicy(1, 16))
    try:
        return asyncio.run(test(llm))
    finally:
        llm.shutdown()


async def until(condition):
    """Check in every iteration of the event loop: states of a few milliseconds are seen, too."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - several kinds
            await asyncio.sleep(0)


def test_tokens_on_two_ranks_are_those_of_one_engine_alone(settings):
    async def test(llm):
        pairs = await asyncio.gather(*(complete(llm, n, f"pair {n}") for n in range(4)))
        for number, pair in enumerate(pairs):
            alone = await complete(llm, number, f"alone {number}", data_parallel_rank=1)
            assert pair.outputs[0].token_ids == alone.outputs[0].token_ids
            assert pair.outputs[0].finish_reason == alone.outputs[0].finish_reason == "length"
            found = logprobs_of(pair)
            wanted = logprobs_of(alone)
            assert found == pytest.approx(wanted, abs=1e-4)
            assert pair.num_cached_tokens == 0
        fetched = await complete(super(PairedLLM, llm), 9, "fetched")
        assert fetched.num_cached_tokens == 88  # as the engine that decodes counts
        assert not llm.num_unfinished_requests

    run(settings, test, tensor_parallel_size=2, executor="mp")


def test_ends_reach_both_engines(settings):
    async def test(llm):
        open_ids = llm.output_processor.request_ids
        # the caller aborts it while the prompt is computed
        task = asyncio.create_task(complete(llm, 0, "early"))
        await until(lambda: "early" + SUFFIX in open_ids())
        await llm.abort("early")
        output = await task
        assert output.outputs[0].finish_reason == "abort"
        # the caller leaves while the prompt is computed
        task = asyncio.create_task(complete(llm, 1, "left"))
        await until(lambda: "left" + SUFFIX in open_ids())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not open_ids()
        # the caller leaves while it decodes
        long = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
        outputs = llm.generate(prompt_of(2), long, "late")
        assert (await anext(outputs)).outputs[0].token_ids
        await outputs.aclose()
        assert not open_ids()
        assert not any(link.requests for link in llm.engine_core.engines.values())
        assert not llm._prefilled
        assert not llm._aborted
        # none of which changes what comes after
        pair = await complete(llm, 3, "pair")
        alone = await complete(llm, 3, "alone", data_parallel_rank=1)
        assert pair.outputs[0].token_ids == alone.outputs[0].token_ids

    run(settings, test)


def test_what_is_not_worth_it_or_finds_no_prefill_engine_runs_as_ever(settings):
    async def test(llm):
        seen = []
        send = llm.engine_core.send_requests

        def watched(engine, requests):
            seen.append([request.request_id for request in requests])
            send(engine, requests)

        llm.engine_core.send_requests = watched
        scored = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=1)
        await complete(llm, 0, "scored", params=scored)
        await complete(llm, 0, "pinned", data_parallel_rank=1)
        await complete(llm, 0, "own", kv_transfer_params={"do_remote_decode": False})
        assert seen == [["scored"], ["pinned"], ["own"]]
        await complete(llm, 0, "paired")
        assert seen[3:] == [["paired" + SUFFIX], ["paired"]]
        llm.engine_core.engine_died(0, Death("the test says so"))
        await complete(llm, 1, "alone")
        assert seen[5:] == [["alone"]]

    run(settings, test)
