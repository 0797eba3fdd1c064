"""New weights, saving and sleep where ranks are processes (AF-14, SV-1). Oracle: `generate` of transformers."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from tenonry import LLM, AsyncLLM, EngineConfig, SamplingParams
from tenonry.errors import TenonryError

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("one_thread", "forked_children")]
PROMPT = [5, 17, 33, 8]
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
SETTINGS = {
    "worker": "torch", "dtype": "float32", "device": "cpu", "max_num_seqs": 2, "max_model_len": 64,
    "num_gpu_blocks_override": 32, "skip_tokenizer_init": True,
}  # fmt: skip
SMALL = LlamaConfig(
    vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
)  # fmt: skip
MIB = 1 << 20


def random_model(seed):
    torch.manual_seed(seed)
    model = LlamaForCausalLM(SMALL).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, weight.shape[-1] ** -0.5)
    return model


def wanted(model):
    made = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    return made[0, len(PROMPT) :].tolist()


def made_by(llm):
    [output] = llm.generate([{"prompt_token_ids": PROMPT}], GREEDY, use_tqdm=False)
    return list(output.outputs[0].token_ids)


@pytest.mark.parametrize(
    "layout", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=["TP 2", "PP 2"]
)
@pytest.mark.nightly_after(1)
def test_half_an_update_ends_service_until_a_good_one(tmp_path, layout):
    first = random_model(0)
    second = random_model(1)
    first.save_pretrained(tmp_path / "model")
    state = dict(second.state_dict())
    save_file(state, tmp_path / "good.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    save_file(state | {name: torch.full((32, 64), torch.nan)}, tmp_path / "bad.safetensors")
    with LLM(model=str(tmp_path / "model"), executor="mp", **layout, **SETTINGS) as llm:
        assert made_by(llm) == wanted(first)
        with pytest.raises(TenonryError):
            llm.update_weights(str(tmp_path / "bad.safetensors"), version="bad")
        with pytest.raises(TenonryError, match="an update that failed; bring a good one"):
            made_by(llm)
        llm.update_weights(str(tmp_path / "good.safetensors"), version="good")
        assert made_by(llm) == wanted(second)
        llm.save_sharded_state(str(tmp_path / "saved"))
    settings = SETTINGS | layout | {"load_format": "sharded"}
    with LLM(model=str(tmp_path / "saved"), executor="mp", **settings) as llm:
        assert made_by(llm) == wanted(second)


def write_large_model(folder: Path) -> None:
    """An embedding of 205 MB that is all zeros, of which the file system stores nothing."""
    config = LlamaConfig(
        vocab_size=100_000, hidden_size=512, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=8, num_key_value_heads=8, head_dim=128, max_position_embeddings=2048,
        tie_word_embeddings=True,
    )  # fmt: skip
    folder.mkdir()
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    header = {}
    end = 0
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight":
            begin = end
            end += weight.numel() * 4
            header[name] = {
                "dtype": "F32",
                "shape": list(weight.shape),
                "data_offsets": [begin, end],
            }
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def resident() -> int:
    """Of the engine, the one process that this one started and that holds much."""
    return max(each.memory_info().rss for each in psutil.Process().children(recursive=True)) // MIB


def test_memory_falls_with_sleep_and_comes_back(tmp_path):
    write_large_model(tmp_path / "large")
    settings = SETTINGS | {
        "max_model_len": 2048, "num_gpu_blocks_override": 128, "max_num_batched_tokens": 2048,
        "skip_model_check": True,
    }  # fmt: skip
    llm = AsyncLLM(EngineConfig(model=str(tmp_path / "large"), **settings))
    prompt = {"prompt_token_ids": [7] * 2000}  # K/V of 2 000 tokens are 31 MiB

    async def use(name):
        async for _ in llm.generate(prompt, GREEDY, name):
            pass
        return resident()

    async def sizes():
        await use("first")  # which grows buffers that stay
        found = [await use("second")]
        for level in (1, 2):
            await llm.sleep(level)
            found.append(resident())
            await llm.wake_up()
            found.append(await use(f"after {level}"))
        return found

    try:
        awake, without_cache, again, without_weights, last = asyncio.run(sizes())
    finally:
        llm.shutdown()
    assert awake - without_cache > 20
    assert again - without_cache > 20
    assert again - without_weights > 150
    assert last - without_weights > 150
    assert abs(last - awake) < 150
