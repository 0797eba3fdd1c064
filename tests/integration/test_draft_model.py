"""A small model drafts: the demo model, real engines, against an engine that decodes one token a step.

Where the model that drafts is the one that is served, every guess is right, or K/V of the two have come apart.
"""

from __future__ import annotations

import json
import random
import shutil

import msgspec
import pytest
import torch

from tenonry import LLM, SamplingParams, StructuredOutput
from tenonry.errors import ConfigError, ModelError
from tenonry_demo_model import model_path
from tenonry_drafters import controller
from tenonry_scheduling import rounds
from tenonry_worker_torch.drafting import rounds as drafted_rounds

pytestmark = [pytest.mark.timeout(180), pytest.mark.usefixtures("one_thread")]
SETTINGS = {
    "model": str(model_path()), "dtype": "float32", "device": "cpu", "max_num_seqs": 8, "max_model_len": 512,
    "log_stats": False,
}  # fmt: skip
PROMPTS = ["Once upon a time", "the cat sat on the mat and the dog", "Hello, my name is", "What is"]
SAME = {"name": "model", "options": {"model": "demo", "min_probability": 0}}
LONG = SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True)
DRAWN = SamplingParams(temperature=0.9, seed=3, max_tokens=40)


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    monkeypatch.setattr(rounds, "MAX_WAIT_S", 60.0)
    monkeypatch.setattr(drafted_rounds, "MAX_WAIT_S", 60.0)
    monkeypatch.setattr(controller, "FIRST_CREDIT", 1e9)


@pytest.fixture(scope="module")
def plain():
    with LLM(**SETTINGS, max_round_tokens=1) as llm:
        begin_with_grammars(llm)
        yield llm


@pytest.fixture(scope="module")
def same():
    with LLM(**SETTINGS, drafter=SAME) as llm:
        yield llm


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """The demo model with noise in its weights: right about half of the time."""
    from safetensors.torch import load_file, save_file

    folder = tmp_path_factory.mktemp("drafts") / "noisy"
    shutil.copytree(model_path(), folder)
    draw = torch.Generator().manual_seed(1)
    weights = {
        name: weight + 0.3 * weight.std() * torch.randn(weight.shape, generator=draw)
        for name, weight in load_file(folder / "model.safetensors").items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with LLM(**SETTINGS, drafter={"name": "model", "options": {"model": str(folder)}}) as llm:
        begin_with_grammars(llm)
        yield llm


def begin_with_grammars(llm):
    """Their process and thread stay for as long as the engine."""
    spec = StructuredOutput(choice=("yes",))
    tokens(llm, PROMPTS[:1], msgspec.structs.replace(DRAWN, structured_output=spec))


def tokens(llm, prompts, params):
    outputs = llm.generate(prompts, params)
    return [[each.token_ids for each in output.outputs] for output in outputs]


def drafted(llm):
    """Tokens that were drafted since the last call, and how many of them were right."""
    stats = llm.engine_core.scheduler.make_stats()
    return stats.num_draft_tokens, stats.num_accepted_tokens


class TestEveryGuessIsRight:
    @pytest.mark.nightly
    def test_over_long_outputs_of_several_rows(self, plain, same):
        drafted(same)
        for count in (1, 4):
            expected = tokens(plain, PROMPTS[:count], LONG)
            assert tokens(same, PROMPTS[:count], LONG) == expected
            num_drafted, num_accepted = drafted(same)
            assert num_drafted == num_accepted > 70 * count

    def test_where_rows_also_decode_without_being_asked_about(self, plain, same, monkeypatch):
        """So histories grow by several tokens between two guesses, and the rows of guesses vary."""
        draw = random.Random(5)
        most = controller.DraftController.most

        def seldom(self, rows, left, lengths):
            wanted = most(self, rows, left, lengths)
            return [draw.choice([0, 0, min(count, 1), count]) for count in wanted]

        monkeypatch.setattr(controller.DraftController, "most", seldom)
        expected = tokens(plain, PROMPTS, LONG)
        drafted(same)
        assert tokens(same, PROMPTS, LONG) == expected
        num_drafted, num_accepted = drafted(same)
        assert num_drafted == num_accepted > 60

    @pytest.mark.nightly
    def test_where_more_rows_run_than_are_drafted_for(self, plain, same):
        params = [
            SamplingParams(temperature=0.0, max_tokens=20 + 25 * number, ignore_eos=True)
            for number in range(6)
        ]
        prompts = [*PROMPTS, *PROMPTS[:2]]
        expected = tokens(plain, prompts, params)
        drafted(same)
        assert tokens(same, prompts, params) == expected
        num_drafted, num_accepted = drafted(same)
        assert num_drafted == num_accepted > 60

    @pytest.mark.nightly
    def test_after_preemption(self, plain):
        """Blocks of the cache run out: rows leave and come back, in any of the rows."""
        expected = tokens(plain, PROMPTS, LONG)
        with LLM(**SETTINGS, drafter=SAME, num_gpu_blocks_override=33, block_size=16) as llm:
            preempted = llm.engine_core.scheduler.make_stats().num_preemptions
            assert tokens(llm, PROMPTS, LONG) == expected
            stats = llm.engine_core.scheduler.make_stats()
        assert stats.num_preemptions > preempted
        assert stats.num_draft_tokens == stats.num_accepted_tokens > 60

    @pytest.mark.nightly
    @pytest.mark.usefixtures("forked_children")
    def test_with_two_ranks(self, plain):
        """The first drafts for both."""
        expected = tokens(plain, PROMPTS[:2], LONG)
        with LLM(**SETTINGS, drafter=SAME, tensor_parallel_size=2) as llm:
            assert tokens(llm, PROMPTS[:2], LONG) == expected
            num_drafted, num_accepted = drafted(llm)
        assert num_drafted == num_accepted > 60


class TestTokensStayTheSame:
    @pytest.mark.nightly_after(3)
    @pytest.mark.parametrize(
        "changes",
        [
            {},
            {"temperature": 0.0},
            {"presence_penalty": 0.7, "frequency_penalty": 0.4},
            {"n": 3},
            {"stop": [" the", "."]},
            {"logprobs": 2},
            {"structured_output": StructuredOutput(regex="( the cat sat on the mat and| [a-z]{2,8}){4,7}")},
        ],
        ids=["drawn", "greedy", "penalties", "n", "stop", "logprobs", "grammar"],
    )  # fmt: skip
    def test_of_a_model_that_is_often_wrong(self, plain, other, changes):
        params = msgspec.structs.replace(DRAWN, **changes)
        prompts = PROMPTS[1:2] if params.n > 1 else PROMPTS[:3]
        expected = tokens(plain, prompts, params)
        drafted(other)
        assert tokens(other, prompts, params) == expected
        num_drafted, num_accepted = drafted(other)
        assert num_drafted > num_accepted

    def test_in_rows_that_held_other_requests(self, plain, other):
        expected = tokens(plain, PROMPTS, DRAWN)
        for number, prompt in enumerate(PROMPTS[:2]):
            other.generate([prompt], SamplingParams(temperature=0.0, max_tokens=1 + 9 * number))
        assert tokens(other, PROMPTS, DRAWN) == expected


def edited(folder, name, change):
    """A copy of the demo model with another JSON file."""
    shutil.copytree(model_path(), folder)
    content = json.loads((folder / name).read_text())
    change(content)
    (folder / name).write_text(json.dumps(content))
    return str(folder)


class TestRefused:
    def refuse(self, error, text, **options):
        with pytest.raises(error, match=text):
            LLM(**SETTINGS, drafter={"name": "model", "options": options})

    def test_without_a_model(self):
        self.refuse(ConfigError, "add --drafter-option model=FOLDER_OR_NAME")

    def test_a_folder_that_is_not_there(self):
        self.refuse(ModelError, "the folder /not/there does not exist", model="/not/there")

    def test_another_vocabulary(self, tmp_path):
        def swap(content):
            vocabulary = content["model"]["vocab"]
            first, second = sorted(vocabulary, key=vocabulary.get)[40:42]
            vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]

        model = edited(tmp_path / "draft", "tokenizer.json", swap)
        self.refuse(ConfigError, "token id .* name a smaller model of the same family", model=model)

    def test_a_model_that_only_encodes(self, tmp_path):
        from transformers import BertConfig, BertModel

        config = BertConfig(
            vocab_size=2048, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
        )  # fmt: skip
        BertModel(config).save_pretrained(tmp_path / "draft")
        model = str(tmp_path / "draft")
        self.refuse(ModelError, "cannot be run.* name a causal language model", model=model)

    def test_layers_with_state(self, tmp_path):
        from transformers import MambaConfig, MambaForCausalLM

        config = MambaConfig(vocab_size=2048, hidden_size=32, num_hidden_layers=1, state_size=4)
        MambaForCausalLM(config).save_pretrained(tmp_path / "draft")
        model = str(tmp_path / "draft")
        self.refuse(ConfigError, "cannot take guesses back; name one with attention", model=model)


def test_memory_of_its_cache_bounds_what_is_guessed_for(plain):
    """Of 64 tokens of each row: longer ones decode as without it."""
    options = {"model": "demo", "kv_cache_mib": 1, "min_probability": 0}
    expected = tokens(plain, PROMPTS[:1], LONG)
    with LLM(**SETTINGS, drafter={"name": "model", "options": options}) as llm:
        drafted(llm)
        assert tokens(llm, PROMPTS[:1], LONG) == expected
        num_drafted, num_accepted = drafted(llm)
    assert 20 < num_drafted == num_accepted < 64
