"""Operations that a worker lacks are rejected by name, and it serves exactly the listed tasks (AF-16, EC-13)."""

from __future__ import annotations

import asyncio

import pytest

from tenonry import LLM, AsyncLLM, EngineConfig, PoolingParams, SamplingParams
from tenonry.errors import RequestError, Unsupported

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("one_thread")]
SETTINGS = {"model": "demo", "device": "cpu", "max_num_seqs": 2, "max_model_len": 64}


@pytest.mark.parametrize("worker", ["transformers", "pooling"])
def test_operations_are_refused_by_name(worker, tmp_path):
    with LLM(worker=worker, **SETTINGS) as llm:
        for method, call in {
            **({"profile": llm.start_profile} if worker == "transformers" else {}),
            "save_sharded_state": lambda: llm.save_sharded_state(str(tmp_path / "saved")),
            "sleep": llm.sleep,
            "check_update": lambda: llm.update_weights(str(tmp_path)),
        }.items():
            with pytest.raises(
                Unsupported, match=f"worker '{worker}' does not support '{method}'; it declares"
            ):
                call()
        assert not llm.is_sleeping()
    assert not (tmp_path / "saved").exists()


@pytest.mark.usefixtures("forked_children")
@pytest.mark.parametrize(
    ("worker", "tasks"),
    [("torch", ("generate",)), ("transformers", ("generate",)), ("pooling", ("embed",))],
)
def test_tasks_are_what_is_served(worker, tasks):
    llm = AsyncLLM(EngineConfig(worker=worker, **SETTINGS))

    async def ask():
        assert await llm.get_supported_tasks() == tasks
        if tasks == ("generate",):
            async for _ in llm.generate([5], SamplingParams(max_tokens=1), "1"):
                pass
            with pytest.raises(RequestError, match="this model generates"):
                await llm.encode([5], PoolingParams(), "2")
        else:
            assert len((await llm.encode([5], PoolingParams(), "1")).data)
            with pytest.raises(RequestError, match="does not generate"):
                await anext(llm.generate([5], SamplingParams(), "2"))

    try:
        asyncio.run(ask())
    finally:
        llm.shutdown()
