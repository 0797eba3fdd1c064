"""Rotary tables that depend on the sequence length: greedy tokens equal `generate` for each row alone, for any other
rows and any split into steps (dynamic NTK, LongRoPE, tables of their own for each kind of layer).

Each original length is 32. Prompts are shorter, as long, and longer; some cross it while they decode.
"""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from test_token_identity import DEEP, families

from tenonry import LLM, SamplingParams
from tenonry_testkit.tiers import diagonal

pytestmark = pytest.mark.usefixtures("one_thread")
ORIGINAL = 32
LENGTHS = (6, 31, 55, 20, 32, 33, 27, 40)
NUM_TOKENS = 14
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
LONG = {
    "rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0, 1.1, 1.2, 1.4, 1.5, 1.7, 2.0, 2.5],
    "long_factor": [1.0 + 2 * i for i in range(8)], "original_max_position_embeddings": ORIGINAL,
}  # fmt: skip
BY_LAYER = {
    "full_attention": DYNAMIC,
    "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
}
MODELS = {
    "dynamic": ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": ORIGINAL}),
    "dynamic by layer": (
        "gemma3",
        {"rope_parameters": BY_LAYER, "max_position_embeddings": ORIGINAL, "sliding_window": 8},
    ),
    "longrope": ("llama", {"rope_parameters": LONG}),
    "phi3": ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": ORIGINAL}),
    "phimoe": (
        "phimoe",
        {
            "rope_parameters": LONG | {"short_mscale": 1.1, "long_mscale": 1.25},
            "original_max_position_embeddings": ORIGINAL,
            "num_local_experts": 4,
        },
    ),
}
RESTARTING = {"phi3", "phimoe"}
SETTINGS = {
    "executor": "uni", "dtype": "float32", "device": "cpu", "max_num_seqs": 8, "max_model_len": 96, "block_size": 4,
    "skip_tokenizer_init": True, "worker": "torch",
}  # fmt: skip
WAYS = {
    "one batch": {},
    "small chunks": {"max_num_batched_tokens": 12},
    "own code of the model": {"worker": {"name": "torch", "options": {"fuse": False}}},
    "preemption": {"num_gpu_blocks_override": 48, "max_num_batched_tokens": 24},
    "three steps in flight": {"worker": "{deep}:ThreeSteps", "max_num_batched_tokens": 16},
    "drafts": {"drafter": "ngram"},
    "static": {"scheduler": "static"},
    "worker transformers": {"worker": "transformers"},
}


class Model:
    """A small model, its folder, and the answer of `generate` to a prompt with a module that has seen no other."""

    def __init__(self, name, root):
        family, changes = MODELS[name]
        with pytest.MonkeyPatch.context() as patch:
            kind, values = families.FAMILIES.get(family, (family, families.SMALL))
            patch.setitem(families.FAMILIES, family, (kind, {**values, **changes}))
            patch.setitem(families.SEEDS, family, 7)
            self.module = families.build(family)
        self.deep = root / "deep.py"
        self.deep.write_text(DEEP)
        self.folder = root / name.replace(" ", "-")
        self.module.save_pretrained(self.folder)
        self.name = name

    @functools.cache  # noqa: B019 - lives as long as the module's tests
    def generated(self, prompt):
        made = copy.deepcopy(self.module).generate(
            torch.tensor([prompt]),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        return made[0, len(prompt) :].tolist()


def prompts(lengths=LENGTHS, shared=0):
    generator = torch.Generator().manual_seed(3)
    start = torch.randint(3, 96, (shared,), generator=generator).tolist()
    return [
        (*start, *torch.randint(3, 96, (length - shared,), generator=generator).tolist())
        for length in lengths
    ]


def serve(llm, ids):
    params = SamplingParams(
        temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False
    )
    outputs = llm.generate([{"prompt_token_ids": list(each)} for each in ids], params)
    return [list(output.outputs[0].token_ids) for output in outputs], outputs


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    return Model(request.param, tmp_path_factory.mktemp("rope"))


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize(("model", "way"), diagonal(MODELS, WAYS), indirect=["model"])
def test_tokens_equal_generate_for_each_row_alone(model, way):
    changes = {
        key: value.format(deep=model.deep) if key == "worker" and isinstance(value, str) else value
        for key, value in WAYS[way].items()
    }
    with LLM(model=str(model.folder), **(SETTINGS | changes)) as llm:
        tokens, _ = serve(llm, prompts())
    assert tokens == [model.generated(prompt) for prompt in prompts()]


@pytest.mark.nightly_after(1)
def test_prefixes_are_shared_only_where_keys_are_equal(model):
    """A common beginning in prompts on both sides of the original length, twice."""
    ids = prompts((22, 30, 45, 60, 45, 24), shared=20)
    with LLM(model=str(model.folder), **SETTINGS) as llm:
        for prompt in (*ids, *ids):
            tokens, outputs = serve(llm, [prompt])
            assert tokens == [model.generated(prompt)]
            found = outputs[0].num_cached_tokens
        assert found >= 20  # of the last one: those of its own class share


@pytest.mark.nightly_after(1)
def test_a_row_that_outgrows_the_original_length_is_computed_again_where_generate_does(model):
    (crossing,) = prompts((28,))
    with LLM(model=str(model.folder), **SETTINGS) as llm:
        tokens, outputs = serve(llm, [crossing])
    assert tokens == [model.generated(crossing)]
    assert outputs[0].metrics.num_preemptions == (model.name in RESTARTING)
