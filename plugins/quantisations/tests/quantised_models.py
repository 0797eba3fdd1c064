"""Small quantised models: those of compressed-tensors are written by that library, those of GPTQ and AWQ by plain loops
over integers, as their formats are documented.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
from compressed_tensors.quantization.utils import calculate_qparams
from quantised_answers import VOCABULARY
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

GROUP = 32
HIDDEN = 64
INNER = 96
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def model_folder(folder: Path, **changes) -> LlamaForCausalLM:
    """A model of floats, saved, and the model."""
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "eos_token_id": 1,
        "dtype": "float32",
    }
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(**shape | changes)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)  # so that tokens differ clearly
    model.save_pretrained(folder)
    return model


def compress(folder: Path, weights: dict, inputs: dict | None = None, **config) -> LlamaForCausalLM:
    """Write the model of `folder` in the library's format; returns the model that the library dequantises."""
    model = LlamaForCausalLM.from_pretrained(folder)
    plain = copy.deepcopy(model)
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    chosen = QuantizationConfig(config_groups={"group_0": group}, ignore=["lm_head"], **config)
    apply_quantization_config(model, chosen)
    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is not None and hasattr(module, "weight_scale"):
            _fill(module, scheme.weights)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    stored = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(stored, folder / "model.safetensors")
    compressor.update_config(str(folder))
    compressor.decompress_model(model)
    known = plain.state_dict()
    plain.load_state_dict(
        {name: tensor for name, tensor in model.state_dict().items() if name in known}
    )
    return plain.eval()


def _fill(module: torch.nn.Linear, arguments) -> None:
    """Scales and zero points from the smallest and largest of each group."""
    rows, columns = module.weight.shape
    groups = module.weight_scale.shape[-1] if module.weight_scale.dim() == 2 else 1
    parts = module.weight.detach().view(rows, groups, columns // groups)
    low, high = parts.amin(-1), parts.amax(-1)
    if module.weight_scale.numel() == 1:
        low, high = low.min()[None], high.max()[None]
    scale, zero = calculate_qparams(low, high, arguments)
    module.weight_scale.data.copy_(scale.view(module.weight_scale.shape))
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data.copy_(zero.view(module.weight_zero_point.shape))


def write_plainly(folder: Path, method: str, config: dict):
    """Write the model of `folder` as GPTQ or AWQ do; returns it with the dequantised weights."""
    model = LlamaForCausalLM.from_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    for name, module in model.named_modules():
        if name.rpartition(".")[2] not in LAYERS:
            continue
        weight = stored.pop(f"{name}.weight")
        parts, made = split(weight, config, method)
        stored |= {f"{name}.{ending}": tensor for ending, tensor in parts.items()}
        module.weight.data.copy_(made)
    save_file(stored, folder / "model.safetensors")
    settings = json.loads((folder / "config.json").read_text())
    settings["quantization_config"] = {"quant_method": method, **config}
    (folder / "config.json").write_text(json.dumps(settings))
    return model.eval()


def write_floats(folder: Path, block: list[int] | None) -> LlamaForCausalLM:
    """Write the model of `folder` in floats of 8 bits as DeepSeek does; returns it with the dequantised weights."""
    model = LlamaForCausalLM.from_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    for name, module in model.named_modules():
        if name.rpartition(".")[2] not in LAYERS:
            continue
        weight = module.weight.data
        rows, columns = weight.shape
        height, width = block or (rows, columns)
        parts = weight.view(rows // height, height, columns // width, width)
        scales = parts.abs().amax((1, 3), keepdim=True) / 448
        values = (parts / scales).to(torch.float8_e4m3fn)
        stored[f"{name}.weight"] = values.view(rows, columns)
        stored[f"{name}.weight_scale_inv"] = scales[:, 0, :, 0] if block else scales.flatten()[0]
        weight.copy_((values.float() * scales).view(rows, columns))
    save_file(
        {key: each.contiguous() for key, each in stored.items()}, folder / "model.safetensors"
    )
    settings = json.loads((folder / "config.json").read_text())
    settings["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": block,
        "modules_to_not_convert": ["lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(settings))
    return model.eval()


def split(weight: torch.Tensor, config: dict, method: str):
    """The tensors of one matrix, and their dequantised floats; with `desc_act`, groups are any columns."""
    rows, columns = weight.shape
    bits = config["bits"]
    size = config["group_size"] if config["group_size"] > 0 else columns
    groups = torch.arange(columns) // size
    if config.get("desc_act"):
        groups = groups[torch.randperm(columns)]
    count = columns // size
    values = torch.zeros(columns, rows, dtype=torch.long)
    zeros = torch.zeros(count, rows, dtype=torch.long)
    scales = torch.zeros(count, rows)
    for group in range(count):
        part = weight[:, groups == group]
        low, high = part.amin(1).clamp_max(0), part.amax(1).clamp_min(0)
        scale = ((high - low) / (2**bits - 1)).half().float()
        zero = (-low / scale).round().clamp(0, 2**bits - 1)
        scales[group] = scale
        zeros[group] = zero.long()
        made = (part / scale[:, None] + zero[:, None]).round().clamp(0, 2**bits - 1)
        values[groups == group] = made.long().T
    floats = ((values - zeros[groups]) * scales[groups]).T
    if method == "gptq":
        step = 0 if config.get("checkpoint_format") == "gptq_v2" else 1
        parts = {
            "qweight": words_of(values.T, bits).T.contiguous(),
            "qzeros": words_of(zeros - step, bits),
            "scales": scales.half(),
            "g_idx": groups.int(),
        }
    else:
        parts = {
            "qweight": words_of(in_awq_order(values), bits),
            "qzeros": words_of(in_awq_order(zeros), bits),
            "scales": scales.half(),
        }
    return parts, floats


def in_awq_order(values: torch.Tensor) -> torch.Tensor:
    made = values.clone()
    for begin in range(0, values.shape[1], len(AWQ_ORDER)):
        for place, output in enumerate(AWQ_ORDER):
            made[:, begin + place] = values[:, begin + output]
    return made


def words_of(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Packed along the last dimension, the low bits first, with Python's integers."""
    each = 32 // bits
    made = []
    for row in values.tolist():
        words = []
        for begin in range(0, len(row), each):
            word = sum(
                value << (bits * place) for place, value in enumerate(row[begin : begin + each])
            )
            words.append(word - (1 << 32) if word >= 1 << 31 else word)
        made.append(words)
    return torch.tensor(made, dtype=torch.int32)
