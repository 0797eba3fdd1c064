"""Writes the small checkpoints in tests/made with the libraries of their formats, and the libraries' logits.

Run it once per format, in an environment of its own that has the library in the version that `VERSIONS` names: `python
as_library.py awq FOLDER`. The folder gets config.json, model.safetensors, and logits.safetensors: the logits [T,
vocabulary] that the library itself computes for `PROMPT`.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

# Of the library, and of transformers with it.
VERSIONS = {
    "awq": {"autoawq": "0.2.9", "transformers": "4.51.3"},
    "llm-compressor": {"llmcompressor": "0.14.0.1", "transformers": "5.17.0"},
}
PROMPT = [5, 17, 40, 2, 33, 8, 21, 60, 11, 3]
GROUP = 32
NUM_SAMPLES = 16
SAMPLE_LENGTH = 64
SHAPE = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "eos_token_id": 1,
}


def check(method: str) -> None:
    """Exit where another version would write the file."""
    for name, wanted in VERSIONS[method].items():
        found = importlib.metadata.version(name)
        if found != wanted:
            raise SystemExit(f"{name} is {found}; pip install {name}=={wanted}")


def write_floats(folder: Path) -> None:
    """A model of random weights, in float16."""
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(4)  # so that tokens differ clearly
    model.half().save_pretrained(folder)


def samples() -> list[list[int]]:
    """Random tokens, to calibrate with."""
    made = torch.Generator().manual_seed(6)
    shape = (NUM_SAMPLES, SAMPLE_LENGTH)
    return torch.randint(2, SHAPE["vocab_size"], shape, generator=made).tolist()


def awq(source: Path, folder: Path) -> torch.Tensor:
    """Quantise by AutoAWQ, which scales by activations. Its layers multiply halves, so floats take its own dequantised
    ones.
    """
    from awq import AutoAWQForCausalLM
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.quantize.quantizer import AwqQuantizer
    from awq.utils.packing_utils import dequantize_gemm

    model = AutoAWQForCausalLM.from_pretrained(str(source), device_map="cpu")
    config = {"zero_point": True, "q_group_size": GROUP, "w_bit": 4, "version": "GEMM"}
    data = samples()
    model.quantize(
        None,
        quant_config=config,
        calib_data=data,
        max_calib_samples=len(data),
        max_calib_seq_len=SAMPLE_LENGTH,
        quantizer_cls=AwqQuantizer,
    )
    model.save_quantized(str(folder), safetensors=True)
    plain = LlamaForCausalLM.from_pretrained(source).float()
    stored = {key: each.float() for key, each in model.model.state_dict().items()}
    plain.load_state_dict(stored, strict=False)  # norms are scaled as well
    for name, module in model.model.named_modules():
        if isinstance(module, WQLinear_GEMM):
            weight = dequantize_gemm(
                module.qweight, module.qzeros, module.scales, module.w_bit, module.group_size
            )
            plain.get_submodule(name).weight.data.copy_(weight.T)
    with torch.no_grad():
        return plain(torch.tensor([PROMPT])).logits[0]


def llm_compressor(source: Path, folder: Path) -> torch.Tensor:
    """Quantise by GPTQ in llm-compressor, read again by transformers with compressed-tensors."""
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {str(number): number for number in range(SHAPE["vocab_size"])}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="0")),  # noqa: S106 - no password
        pad_token="0",  # noqa: S106 - no password
    )
    data = samples()
    columns = {"input_ids": data, "attention_mask": [[1] * SAMPLE_LENGTH for _ in data]}
    weights = {
        "num_bits": 4,
        "type": "int",
        "symmetric": False,
        "strategy": "group",
        "group_size": GROUP,
    }
    recipe = GPTQModifier(
        config_groups={"group_0": {"targets": ["Linear"], "weights": weights}}, ignore=["lm_head"]
    )
    model = LlamaForCausalLM.from_pretrained(source, dtype=torch.float32)
    oneshot(
        model=model,
        dataset=Dataset.from_dict(columns),
        recipe=recipe,
        processor=tokenizer,
        max_seq_length=SAMPLE_LENGTH,
        num_calibration_samples=NUM_SAMPLES,
    )
    model.save_pretrained(folder, save_compressed=True)
    again = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        return again(torch.tensor([PROMPT])).logits[0]


METHODS = {"awq": awq, "llm-compressor": llm_compressor}


def main() -> None:
    """Write one checkpoint."""
    method, target = sys.argv[1], Path(sys.argv[2])
    check(method)
    source = target.with_name("floats")
    write_floats(source)
    logits = METHODS[method](source, target)
    save_file({"logits": logits.float().contiguous()}, target / "logits.safetensors")
    (target / "made_with.json").write_text(
        json.dumps({**VERSIONS[method], "torch": torch.__version__})
    )


if __name__ == "__main__":
    main()
