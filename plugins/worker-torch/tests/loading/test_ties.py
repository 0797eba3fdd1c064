"""Weights of a model, on one rank and on several: embedding and head that are tied or not, and the files of a folder
that count. transformers on one rank decides.
"""

from __future__ import annotations

import itertools
import json
import logging
import shutil

import parallel_tools
import pytest
import torch
import worker_families
import worker_tools
from safetensors.torch import load_file, save_file
from worker_driver import Driver, Request

from tenonry.errors import ModelError
from tenonry_testkit.tiers import nightly_unless
from tenonry_worker_torch.loading.load import look

LAYOUTS = {"one rank": {}, "tensor": {"tp": 2}, "pipeline": {"pp": 2}, "both": {"tp": 2, "pp": 2}}
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"
NUM_TOKENS = 8


def other(weight, seed=0):
    return torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))


CASES = {
    "tied, and one stored": (True, lambda w: w.pop(HEAD, None)),
    "tied, and both stored": (True, lambda w: w.update({HEAD: w[EMBEDDING].clone()})),
    "tied, and another head stored": (True, lambda w: w.update({HEAD: other(w[EMBEDDING])})),
    "tied, and only the head stored": (True, lambda w: w.update({HEAD: other(w.pop(EMBEDDING))})),
    "tied, and stored in other types": (
        True,
        lambda w: w.update({HEAD: other(w[EMBEDDING]).bfloat16()}),
    ),
    "not tied": (False, lambda w: w.update({HEAD: other(w[EMBEDDING])})),
}


def model(folder, *, tied, change=lambda weights: None, family="llama"):
    """A folder whose config.json contradicts its weights."""
    worker_families.save(family, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": tied}))
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def generated(folder, prompts):
    from transformers import AutoModelForCausalLM

    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return [
        reference.generate(
            torch.tensor([prompt]),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )[0, len(prompt) :].tolist()
        for prompt in prompts
    ]


def served(folder, prompts, **layout):
    ranks = parallel_tools.Ranks(folder, **layout)
    try:
        requests = [
            Request(i + 1, prompt, max_tokens=NUM_TOKENS) for i, prompt in enumerate(prompts)
        ]
        Driver(ranks.answer, max_num_seqs=6, num_blocks=96, block_size=4).run(requests)
        return [request.output for request in requests]
    finally:
        ranks.close()


@pytest.mark.parametrize(
    ("case", "layout"),
    nightly_unless(
        lambda case, layout: layout in {"one rank", "both"} or case == "not tied",
        itertools.product(CASES, LAYOUTS),
    ),
)
@pytest.mark.slow
@pytest.mark.nightly_after(5)
def test_embedding_and_head_are_those_of_transformers(case, layout, tmp_path):
    tied, change = CASES[case]
    folder = model(tmp_path, tied=tied, change=change)
    prompts = worker_tools.prompts((5, 17))
    assert served(folder, prompts, **LAYOUTS[layout]) == generated(folder, prompts)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.slow
def test_without_a_head_the_embedding_is_one(layout, tmp_path):
    """transformers draws a random head, another one in each start."""
    (tmp_path / "tied").mkdir()
    folder = model(tmp_path, tied=False, change=lambda w: w.pop(HEAD))
    tied = model(tmp_path / "tied", tied=True, change=lambda w: w.pop(HEAD))
    prompts = worker_tools.prompts((5, 17))
    assert served(folder, prompts, **LAYOUTS[layout]) == generated(tied, prompts)


def test_the_log_says_what_was_decided(tmp_path, caplog):
    caplog.set_level(logging.INFO, "tenonry.worker")
    cases = {
        "another head": (True, lambda w: w.update({HEAD: other(w[EMBEDDING])}), "each is used"),
        "no head": (False, lambda w: w.pop(HEAD), f"{EMBEDDING} is used in its place"),
        "unused": (
            False,
            lambda w: w.update(
                {f"model.layers.{i}.mlp.up_proj.input_scale": torch.ones(1) for i in range(3)}
            ),
            "3 stored tensors are not used: model.layers.*.mlp.up_proj.input_scale (3)",
        ),
    }
    for name, (tied, change, words) in cases.items():
        (tmp_path / name).mkdir()
        folder = model(tmp_path / name, tied=tied, change=change)
        look(str(folder), load_format="auto").checkpoint.log()
        assert words in caplog.text


def test_neither_embedding_nor_head_is_refused(tmp_path):
    def drop(weights):
        weights.pop(HEAD)
        weights.pop(EMBEDDING)

    with pytest.raises(ModelError, match=r"2 of the tensors .* such as .*embed_tokens"):
        look(str(model(tmp_path, tied=False, change=drop)), load_format="auto")


# ---------------------------------------------------------------------- files


def shards(folder, weights, stem="model", count=2):
    names = sorted(weights)
    parts = [names[start::count] for start in range(count)]
    weight_map = {}
    for number, part in enumerate(parts):
        file = f"{stem}-{number + 1:05}-of-{count:05}.safetensors"
        save_file({key: weights[key] for key in part}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    return weight_map


def write_index(folder, weight_map):
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def single_beside_shards(folder, right, wrong):
    save_file(right, folder / "model.safetensors", metadata={"format": "pt"})
    write_index(folder, shards(folder, wrong))


def saved_again_beside_an_older_index(folder, right, wrong):
    write_index(folder, dict.fromkeys(wrong, "older-00001-of-00001.safetensors"))
    shards(folder, right)


def empty_index(folder, right, wrong):
    write_index(folder, {})
    shards(folder, right)


def no_index(folder, right, wrong):
    shards(folder, right)


def another_name(folder, right, wrong):
    save_file(right, folder / "weights.safetensors", metadata={"format": "pt"})


def other_places_than_the_index_says(folder, right, wrong):
    weight_map = shards(folder, right)
    files = sorted(set(weight_map.values()))
    write_index(folder, {key: files[1 - files.index(file)] for key, file in weight_map.items()})


# Those that transformers reads as well, which has the last word.
READ_BY_BOTH = {single_beside_shards, other_places_than_the_index_says}
FOLDERS = (
    single_beside_shards,
    saved_again_beside_an_older_index,
    empty_index,
    no_index,
    another_name,
    other_places_than_the_index_says,
)


@pytest.mark.parametrize(
    ("arrange", "layout"),
    nightly_unless(
        lambda arrange, layout: layout == "one rank" or arrange is single_beside_shards,
        itertools.product(FOLDERS, LAYOUTS),
    ),
    ids=lambda each: getattr(each, "__name__", each),
)
@pytest.mark.slow
@pytest.mark.nightly_after(4)
def test_one_rule_says_which_files_count(arrange, layout, tmp_path):
    model_of = tmp_path / "model"
    model_of.mkdir()
    model(model_of, tied=False)
    right = load_file(model_of / "model.safetensors")
    wrong = {key: other(value) for key, value in right.items()}
    folder = tmp_path / "arranged"
    folder.mkdir()
    shutil.copy(model_of / "config.json", folder)
    arrange(folder, right, wrong)
    prompts = worker_tools.prompts((5, 17))
    wanted = generated(model_of, prompts)
    if arrange in READ_BY_BOTH:
        assert generated(folder, prompts) == wanted
    assert served(folder, prompts, **LAYOUTS[layout]) == wanted


# ---------------------------------------------------------------------- quantised, and not declared

UNDECLARED = {
    "float8 and its scale": (
        torch.float8_e4m3fn,
        "weight_scale",
        r"is F8_E4M3, with .*weight_scale",
    ),
    "float8 in blocks": (torch.float8_e4m3fn, "weight_scale_inv", r"is F8_E4M3, with .*_scale_inv"),
    "int8 and its scale": (torch.int8, "weight_scale", r"is I8, with .*weight_scale"),
    "int8 alone": (torch.int8, None, r"is I8: the weights are quantised"),
    "packed bytes": (torch.uint8, "weight_scale_2", r"is U8, with .*weight_scale_2"),
}


@pytest.mark.parametrize("case", UNDECLARED)
def test_rejects_undeclared_low_bit_weights_by_name(case, tmp_path):
    dtype, scale, words = UNDECLARED[case]
    key = "model.layers.0.mlp.up_proj.weight"

    def quantise(weights):
        weights[key] = (weights[key] * 4).to(dtype)
        if scale is not None:
            weights[f"{key.removesuffix('weight')}{scale}"] = torch.ones(1)

    folder = model(tmp_path, tied=False, change=quantise)
    with pytest.raises(ModelError, match=rf"model\.safetensors: tensor {key} {words}"):
        look(str(folder), load_format="auto")


def test_plain_floats_of_8_bits_are_numbers(tmp_path):
    def cast(weights):
        for key in list(weights):
            weights[key] = weights[key].to(torch.float8_e4m3fn)

    folder = model(tmp_path, tied=False, change=cast)
    prompts = worker_tools.prompts((5, 17))
    assert served(folder, prompts) == generated(folder, prompts)


def test_an_adapter_beside_the_weights_is_not_applied_and_named(tmp_path):
    """transformers applies it where peft is installed."""
    folder = model(tmp_path, tied=False)
    prompts = worker_tools.prompts((5, 17))
    wanted = generated(folder, prompts)
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 64, "target_modules": ["up_proj"]}
    (folder / "adapter_config.json").write_text(
        json.dumps(config | {"base_model_name_or_path": str(folder), "task_type": "CAUSAL_LM"})
    )
    prefix = "base_model.model.model.layers.0.mlp.up_proj"
    tensors = {f"{prefix}.lora_A.weight": torch.ones(4, 64), f"{prefix}.lora_B.weight": torch.ones(96, 4)}  # fmt: skip
    save_file(tensors, folder / "adapter_model.safetensors")
    assert served(folder, prompts) == wanted
    notes = look(str(folder), load_format="auto").checkpoint.notes
    assert any("adapter_config.json" in note and "--lora-modules" in note for note in notes)
