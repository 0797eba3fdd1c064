"""Adapters made and run by peft, the reference: folders that it saves, and the tokens that its models generate."""

from __future__ import annotations

import copy
import warnings

import torch
import worker_tools

from tenonry.step import Adapter
from tenonry_torch_base.buffers import HostBuffers
from tenonry_worker_torch.adapters.registry import Adapters
from tenonry_worker_torch.adapters.targets import LoraTargets
from tenonry_worker_torch.build_model import build
from tenonry_worker_torch.build_plan import BuildPlan

NUM_TOKENS = 8
RANKS = (1, 2, 3, 4, 5, 8, 11, 16)


def targets(rank):
    """Some adapters leave layers out."""
    if rank % 3 == 1:
        return ["q_proj", "v_proj"]
    if rank % 3 == 2:
        return ["k_proj", "o_proj", "up_proj", "down_proj"]
    return "all-linear"


class Peft:
    """A copy of `model` with one adapter per rank, named a1, a2, …, with weights that change the answers."""

    def __init__(self, model, folder, ranks=RANKS, **options):
        from peft import LoraConfig, get_peft_model

        self.folder = folder
        self.model = None
        torch.manual_seed(7)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for rank in ranks:
                settings = {
                    "target_modules": targets(rank), "lora_alpha": 2 * rank, "use_rslora": rank == 4,
                    "task_type": "CAUSAL_LM", "init_lora_weights": False,
                } | options  # fmt: skip
                config = LoraConfig(r=rank, **settings)
                if self.model is None:
                    self.model = get_peft_model(
                        copy.deepcopy(model), config, adapter_name=f"a{rank}"
                    )
                else:
                    self.model.add_adapter(f"a{rank}", config)
            for name, weight in self.model.named_parameters():
                if "lora_" in name:
                    weight.data.normal_(0.0, 0.5 * weight.shape[-1] ** -0.5)
            self.model.eval().save_pretrained(str(folder))

    def path(self, name):
        return str(self.folder / name)

    def generate(self, name, prompt):
        """Greedy, in float32; `name` None: without an adapter."""
        options = {"max_new_tokens": NUM_TOKENS, "do_sample": False, "eos_token_id": None}
        given = torch.tensor([prompt])
        if name is None:
            with self.model.disable_adapter():
                made = self.model.generate(input_ids=given, pad_token_id=0, **options)
        else:
            self.model.set_adapter(name)
            made = self.model.generate(input_ids=given, pad_token_id=0, **options)
        return made[0, len(prompt) :].tolist()


def runner(
    module,
    *,
    max_loras=8,
    max_rank=16,
    max_kept=None,
    fuse=True,
    backend="cpu",
    kernels=None,
    invariant=False,
    **sizes,
):
    """A model runner that may have adapters."""
    adapters = Adapters(LoraTargets(copy.deepcopy(module), module), max_loras, max_rank, max_kept)
    model = build(
        module,
        BuildPlan(
            worker_tools.BACKENDS["invariant" if invariant else backend],
            HostBuffers(torch.device("cpu"), 1),
            max_model_len=64,
            fuse=fuse,
            skip_check=False,
            adapters=adapters,
            kernels=kernels,
            invariant=invariant,
        ),
    )
    return worker_tools.runner(model, **({"max_num_seqs": 12, "num_blocks": 160} | sizes))


def loaded(adapters, name):
    """A request's reference to a loaded adapter."""
    for text in adapters.names():
        if text.rpartition("@")[0] == name:
            return Adapter(*text.rsplit("@", 1))
    raise KeyError(name)
