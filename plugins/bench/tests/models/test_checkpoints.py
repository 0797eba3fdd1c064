from __future__ import annotations

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from tenonry.errors import ConfigError
from tenonry_bench.models.checkpoints import MODELS, as_bfloat16, find_model, shapes

pytestmark = pytest.mark.slow  # whole models


def test_transformers_loads_what_was_written(micro_models):
    """An independent oracle for names and shapes: nothing is missing, nothing is left over."""
    from transformers import AutoModelForCausalLM

    model, found = AutoModelForCausalLM.from_pretrained(
        micro_models / "micro", dtype="auto", output_loading_info=True
    )
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    weight = model.get_parameter("model.layers.1.mlp.up_proj.weight")
    assert weight.dtype == torch.bfloat16
    assert weight.float().std().item() == pytest.approx(0.02, rel=0.1)
    assert model.get_parameter("model.norm.weight").tolist() == [1.0] * 32


def test_rounding_is_that_of_torch():
    values = np.random.default_rng(0).standard_normal(1000, dtype=np.float32)
    wanted = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16)
    assert as_bfloat16(values).tolist() == wanted.tolist()


def test_tokenizer_has_every_id_and_gives_text_back(micro_models):
    tokenizer = Tokenizer.from_file(str(micro_models / "micro" / "tokenizer.json"))
    assert tokenizer.get_vocab_size() == 512
    text = "def prüfe(x):\n    return x"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_model_that_is_there_is_used_by_name_and_by_path(micro_models):
    there = micro_models / "micro"
    before = (there / "model.safetensors").stat().st_mtime_ns
    assert find_model("micro", micro_models) == there
    assert find_model(str(there), micro_models / "elsewhere") == there
    assert (there / "model.safetensors").stat().st_mtime_ns == before


def test_unknown_name_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="--name huge: neither a folder"):
        find_model("huge", tmp_path)


def test_small_has_the_size_of_its_namesake():
    count = sum(int(np.prod(shape)) for _, shape in shapes(MODELS["small"]))
    assert count == pytest.approx(596e6, rel=0.01)
