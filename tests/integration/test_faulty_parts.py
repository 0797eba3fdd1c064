"""A model pass or runner feature of another package that fails on one of two ranks, each a process of its own."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from tenonry import LLM, SamplingParams
from tenonry.errors import TenonryError

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("one_thread", "forked_children")]
HERE = Path(__file__).parent
PARTS = HERE / "faulty_parts.py"
SETTINGS = {
    "scheduler": "batching", "dtype": "float32", "device": "cpu", "max_num_seqs": 4, "max_model_len": 64,
    "block_size": 4, "skip_tokenizer_init": True, "tensor_parallel_size": 2, "executor": "mp",
}  # fmt: skip
PROMPTS = ([5, 6, 7, 8, 9], [11, 12, 13])
FAMILY = "llama-biased"


def load(name, path):
    """A module of the tests by its path."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


families = load(
    "families_of_faulty_parts",
    HERE.parents[1] / "plugins" / "worker-torch" / "tests" / "worker_families.py",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models")
    families.save(FAMILY, path)
    return str(path)


def engine(folder, point, name, **more):
    options = {point: [f"{PARTS}:{name}"]}
    return LLM(model=folder, worker={"name": "torch", "options": options}, **(SETTINGS | more))


def tokens(llm):
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True, detokenize=False)
    given = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs = llm.generate(given, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


@functools.cache
def generated():
    model = families.build(FAMILY)
    made = [
        model.generate(
            torch.tensor([prompt]),
            max_new_tokens=8,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        for prompt in PROMPTS
    ]
    return [ids[0, len(prompt) :].tolist() for prompt, ids in zip(PROMPTS, made, strict=True)]


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Pass", None),
        ("WhyNotRaises", "failed and is left out: RuntimeError: what is this"),
        ("ApplyRaises", "failed and is left out: ValueError: no such shape"),
        ("ComparisonRaises", "failed and is left out: RuntimeError: nothing to compare with"),
        ("LayerRaises", "failed and is left out: RuntimeError: no such kernel"),
        ("ResultsDiffer", "changes results and is left out"),
    ],
)
def test_a_pass_that_fails_on_one_rank_is_left_out_on_all(folder, name, text, capfd):
    with engine(folder, "model_passes", name) as llm:
        assert tokens(llm) == generated()
    log = capfd.readouterr().err
    (line,) = [each for each in log.splitlines() if "Model passes of" in each]
    assert (", odd of" in line.partition("undone")[0]) == (text is None)
    assert log.count("is left out") == (text is not None)
    assert text is None or text in log


def test_a_pass_that_cannot_be_undone_on_one_rank_ends_the_start_with_its_name(folder):
    with pytest.raises(TenonryError, match=r"model pass 'odd of .*' cannot be undone: OSError"):
        engine(folder, "model_passes", "UndoRaises")


def test_a_feature_that_cannot_be_made_on_one_rank_ends_the_start_with_its_name(folder):
    with pytest.raises(TenonryError, match=r"faulty_parts.py:LoadRaises.*no such table"):
        engine(folder, "runner_features", "LoadRaises")


@pytest.mark.parametrize(
    ("name", "text"), [("EnterRaises", "no such request"), ("StepRaises", "no such logits")]
)
@pytest.mark.nightly_after(1)
def test_a_feature_that_raises_in_a_step_on_one_rank_fails_it_with_its_name(folder, name, text):
    with (
        engine(folder, "runner_features", name) as llm,
        pytest.raises(TenonryError, match=rf"faulty_parts.py:{name}.*{text}"),
    ):
        tokens(llm)
