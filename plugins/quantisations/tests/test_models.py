"""Whole models: answers with quantised weights, compared with the library's own dequantised model, or plain loops."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from quantised_answers import PROMPT, answers
from quantised_models import GROUP, compress, model_folder, write_floats, write_plainly
from safetensors.torch import load_file, save_file
from torch.multiprocessing.reductions import StorageWeakRef
from transformers import FineGrainedFP8Config, LlamaForCausalLM

from tenonry_quantisations.int8 import Int8
from tenonry_torch_base.attention.sdpa import SdpaBackend
from tenonry_torch_base.buffers import HostBuffers
from tenonry_torch_base.read_ahead import pieces_of
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan
from tenonry_worker_torch.loading.load import look

pytestmark = pytest.mark.slow  # whole models
CPU = torch.device("cpu")

WEIGHTS_8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
WEIGHTS_4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP}
INPUTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True}
SCHEMES = {
    "W8A8": (WEIGHTS_8, INPUTS),
    "W8A16": (WEIGHTS_8, None),
    "W4A16": (WEIGHTS_4 | {"symmetric": True}, None),
    "W4A16 asymmetric": (WEIGHTS_4 | {"symmetric": False}, None),
}
GPTQ = {"bits": 4, "group_size": GROUP, "sym": False, "desc_act": False}
FLOATS_8 = {"num_bits": 8, "type": "float", "symmetric": True}
SCHEMES |= {
    "FP8 by channel": (FLOATS_8 | {"strategy": "channel"}, INPUTS | {"type": "float"}),
    "FP8 by tensor": (FLOATS_8 | {"strategy": "tensor"}, None),
}
PLAIN = {
    "gptq": ("gptq", GPTQ),
    "gptq v2": ("gptq", GPTQ | {"checkpoint_format": "gptq_v2"}),
    "gptq 8 bits": ("gptq", GPTQ | {"bits": 8, "group_size": -1}),
    "gptq in order of activations": ("gptq", GPTQ | {"desc_act": True}),
    "awq": ("awq", {"bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm"}),
}
# Greatest relative error (L2) of log-probabilities: inputs, and some matrices once more, are rounded to 8 bits.
STATED_ERROR = 0.03


@torch.no_grad()
def expected(model):
    logits = model(torch.tensor([PROMPT])).logits[0, :-1].float()
    made = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=6, do_sample=False, eos_token_id=None
    )
    return logits.log_softmax(-1), made[0, len(PROMPT) :].tolist()


def assert_near(found, wanted, error=STATED_ERROR):
    logprobs, tokens = found
    assert float((logprobs - wanted[0]).norm() / wanted[0].norm()) < error
    assert tokens == wanted[1]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.nightly_after(2)
def test_a_checkpoint_of_compressed_tensors_answers_as_the_library_dequantises_it(
    scheme, tmp_path, caplog
):
    model_folder(tmp_path)
    weights, inputs = SCHEMES[scheme]
    model = compress(tmp_path, weights, inputs)
    with caplog.at_level(logging.INFO):
        assert_near(answers(tmp_path), expected(model))
    name = "fp8" if scheme.startswith("FP8") else "compressed-tensors"
    assert f"Quantisation {name}: 8 matrices" in caplog.text


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.nightly_after(2)
def test_a_checkpoint_written_by_the_documentation_answers_as_its_floats(kind, tmp_path, caplog):
    method, config = PLAIN[kind]
    model_folder(tmp_path)
    model = write_plainly(tmp_path, method, config)
    with caplog.at_level(logging.INFO):
        assert_near(answers(tmp_path), expected(model))
    assert f"Quantisation {method}: 8 matrices" in caplog.text


@pytest.mark.parametrize("block", [None, [32, 16]])
def test_floats_of_8_bits_answer_as_transformers_reads_them(block, tmp_path, caplog):
    model_folder(tmp_path)
    write_floats(tmp_path, block)
    config = FineGrainedFP8Config(dequantize=True, weight_block_size=block)
    model = LlamaForCausalLM.from_pretrained(
        tmp_path, quantization_config=config, dtype=torch.float32, device_map="cpu"
    )
    with caplog.at_level(logging.INFO):
        assert_near(answers(tmp_path), expected(model))
    assert "Quantisation fp8: 8 matrices" in caplog.text


@pytest.mark.parametrize("declared", ["hf_quant_config.json", "quantization_config"])
def test_floats_of_8_bits_of_modelopt_answer_as_what_they_stand_for(declared, tmp_path, caplog):
    model_folder(tmp_path)
    model = write_floats(tmp_path, None)
    stored = load_file(tmp_path / "model.safetensors")
    renamed = {key.replace("scale_inv", "scale"): each for key, each in stored.items()}
    renamed |= {
        key.replace("weight_scale_inv", "input_scale"): torch.ones(())
        for key in stored
        if "scale" in key
    }
    save_file(renamed, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    said = {"quant_algo": "FP8", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
    if declared == "quantization_config":
        config[declared] = {"quant_method": "modelopt", **said}
    else:
        file = {"producer": {"name": "modelopt", "version": "0.33"}, "quantization": said}
        (tmp_path / declared).write_text(json.dumps(file))
    (tmp_path / "config.json").write_text(json.dumps(config))
    with caplog.at_level(logging.INFO):
        assert_near(answers(tmp_path), expected(model))
    assert "Quantisation fp8: 8 matrices" in caplog.text


def test_floats_of_8_bits_are_exact_where_layers_are_not_rounded(tmp_path):
    model_folder(tmp_path)
    model = write_floats(tmp_path, [32, 16])
    found, tokens = answers(tmp_path, enforce_eager=True)
    wanted = expected(model)
    torch.testing.assert_close(found, wanted[0], rtol=1e-4, atol=1e-4)
    assert tokens == wanted[1]


def test_all_parts_of_matrices_are_counted_and_read_ahead(tmp_path):
    model_folder(tmp_path)
    write_plainly(tmp_path, *PLAIN["gptq"])
    stored = load_file(tmp_path / "model.safetensors")
    found = look(str(tmp_path), load_format="auto")
    size = sum(tensor.nbytes for tensor in stored.values())
    assert found.checkpoint.num_bytes == size
    pieces = pieces_of(found.checkpoint)
    assert sum(piece.end - piece.begin for piece in pieces) == size


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_int8_is_made_at_load(dtype, tmp_path, caplog):
    model = model_folder(tmp_path)
    with caplog.at_level(logging.INFO):
        found = answers(tmp_path, dtype, quantization="int8")
    wanted = expected(model)
    assert float((found[0] - wanted[0]).norm() / wanted[0].norm()) < STATED_ERROR
    assert "Quantisation int8: 9 matrices" in caplog.text


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_floats_are_freed_matrix_by_matrix_at_load(tmp_path, dtype):
    """Only matrices that read the same input are alive together while they are rounded."""
    module = model_folder(tmp_path).to(dtype).requires_grad_(False)
    storages: list[StorageWeakRef] = []
    alive = []

    class Watched(Int8):
        def quantise(self, weight):
            alive.append(sum(not each.expired() for each in storages))
            storages.append(StorageWeakRef(weight.untyped_storage()))
            return super().quantise(weight)

    plan = BuildPlan(
        SdpaBackend, HostBuffers(CPU, 1), max_model_len=64, fuse=True, skip_check=False, quantisation=Watched(None)
    )  # fmt: skip
    build(module, plan)
    assert len(alive) >= 4 * 2
    assert max(alive) < len(("q_proj", "k_proj", "v_proj"))
