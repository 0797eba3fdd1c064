"""The drafter `model` keeps the contract of drafters over a real model that this worker runs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import ClassVar

import pytest
import torch
import worker_families
from worker_tools import context, loaded

from tenonry_testkit.drafter import MAX_MODEL_LEN, VOCAB_SIZE, DrafterContract
from tenonry_worker_torch.drafting.models import TorchDraftModels

pytestmark = pytest.mark.slow  # whole models


def write(folder):
    """A small model of the suite's vocabulary."""
    from transformers import LlamaConfig, LlamaForCausalLM

    values = worker_families.SMALL | {
        "vocab_size": VOCAB_SIZE,
        "num_hidden_layers": 1,
        "max_position_embeddings": MAX_MODEL_LEN,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = LlamaForCausalLM(LlamaConfig(**values)).eval()
        for key, weight in module.named_parameters():
            worker_families.fill(key, weight.data)
    module.save_pretrained(folder)
    return module


@pytest.fixture(autouse=True, scope="module")
def served(tmp_path_factory):
    """The model that drafts is the one that is served."""
    folder = tmp_path_factory.mktemp("draft")
    TestModel.served = loaded(write(folder), max_model_len=MAX_MODEL_LEN, skip_check=True)
    TestModel.folder = folder
    TestModel.options = {"min_probability": 0.0, "kv_cache_mib": 16, "model": str(folder)}


class TestModel(DrafterContract):
    drafter = "model"
    served: ClassVar[object]
    folder: ClassVar[object]

    def models(self):
        given = context(
            self.folder, max_model_len=MAX_MODEL_LEN, dtype="float32", skip_model_check=True
        )
        return TorchDraftModels(given, self.served, MAX_MODEL_LEN, nullcontext)
