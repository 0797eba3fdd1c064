"""GGUF files served whole: tokens and log-probabilities against transformers, which reads the same file its own way."""

from __future__ import annotations

import logging
import subprocess
import sys
import warnings
from types import SimpleNamespace

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from tenonry import LLM, SamplingParams
from tenonry_hf_hub.gguf import folder, tokenizer
from tenonry_testkit import gguf_files
from tenonry_testkit.tiers import nightly_unless

PROMPT = "the hand in a café\n and then <|user|>42"
NUM_TOKENS = 12
STATED_ERROR = 1e-4
MODELS = [
    ("llama", "F32", False),
    ("llama", "Q4_0", False),
    ("llama", "Q4_K", True),
    ("qwen2", "Q8_0", True),
    ("qwen2", "BF16", False),
    ("qwen3", "Q6_K", False),
    ("qwen3", "F16", True),
]
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, prompt_logprobs=20)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def tokenizer_here(monkeypatch):
    """The tokenizer is made in this process, which has imported transformers; one test starts the real process."""

    def run(command, **options):
        assert command[:4] == [sys.executable, "-P", "-m", tokenizer.__name__]
        tokenizer.main(*command[4:])
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(folder, "subprocess", SimpleNamespace(run=run))


@torch.no_grad()
def expected(path):
    """The prompt's tokens, log-probabilities of each next one, and the continuation."""
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    ).eval()
    prompt = tokenizer(PROMPT).input_ids
    ids = torch.tensor([prompt])
    logprobs = model(ids).logits[0].log_softmax(-1)
    made = model.generate(ids, max_new_tokens=NUM_TOKENS, do_sample=False, eos_token_id=None)
    return prompt, logprobs, made[0, len(prompt) :].tolist(), tokenizer


@pytest.mark.nightly_after(1)
@pytest.mark.usefixtures("tokenizer_here")
@pytest.mark.parametrize(
    ("name", "kind", "tied"),
    nightly_unless(lambda _, kind, tied: kind in {"Q4_K", "Q8_0", "Q6_K"}, MODELS),
)
def test_a_file_answers_as_transformers_reads_it(name, kind, tied, tmp_path):
    path = gguf_files.write(tmp_path / f"{name}.gguf", name, Kind[kind], tied=tied)
    prompt, logprobs, tokens, tokenizer = expected(path)
    with LLM(model=str(path), dtype="float32") as llm:
        (made,) = llm.generate([PROMPT], GREEDY, use_tqdm=False)
    assert list(made.prompt_token_ids) == prompt
    assert list(made.outputs[0].token_ids) == tokens
    assert made.outputs[0].text == tokenizer.decode(tokens, skip_special_tokens=True)
    for place, row in enumerate(made.prompt_logprobs[1:]):
        for token, entry in row.items():
            assert abs(entry.logprob - float(logprobs[place, token])) < STATED_ERROR


@pytest.mark.nightly
@pytest.mark.slow
def test_a_chat_is_written_with_the_template_of_the_file(tmp_path):
    path = gguf_files.write(tmp_path / "small.gguf", kind=Kind.Q8_0)
    messages = [{"role": "user", "content": "the hand"}]
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    wanted = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    with LLM(model=str(path), dtype="float32") as llm:
        (made,) = llm.chat([messages], GREEDY)
    assert list(made.prompt_token_ids)[-3:] == tokenizer(wanted).input_ids[-3:]
    assert len(made.outputs[0].token_ids) == NUM_TOKENS


@pytest.mark.nightly
@pytest.mark.usefixtures("tokenizer_here")
def test_weights_can_be_rounded_to_8_bits_as_those_of_any_model(tmp_path, caplog):
    path = gguf_files.write(tmp_path / "small.gguf", kind=Kind.Q8_0)
    _, logprobs, _, _ = expected(path)
    with (
        caplog.at_level(logging.INFO),
        LLM(model=str(path), dtype="float32", worker="torch", quantization="int8") as llm,
    ):
        (made,) = llm.generate([PROMPT], GREEDY, use_tqdm=False)
    assert "Quantisation int8: 9 matrices" in caplog.text
    assert distance(made, logprobs) < 0.03


@pytest.mark.nightly_after(1)
@pytest.mark.usefixtures("tokenizer_here")
@pytest.mark.parametrize(
    ("name", "kind", "tied"),
    [
        ("llama", "Q4_1", True),
        ("qwen2", "Q5_0", False),
        ("qwen3", "Q4_K", False),
        ("llama", "Q6_K", True),
    ],
)
def test_blocks_are_computed_with_as_they_are(name, kind, tied, tmp_path, caplog):
    """Four matrices of each layer and the head, of which none is stored in floats."""
    path = gguf_files.write(tmp_path / "small.gguf", name, Kind[kind], tied=tied)
    _, logprobs, _, _ = expected(path)
    with caplog.at_level(logging.INFO), LLM(model=str(path), worker="torch") as llm:
        (made,) = llm.generate([PROMPT], GREEDY, use_tqdm=False)
    assert "Quantisation gguf: 9 matrices" in caplog.text
    assert distance(made, logprobs) < 0.03


def distance(made, logprobs):
    """Relative error (L2) of the log-probabilities of a prompt's tokens."""
    found = {
        (place, token): entry.logprob
        for place, row in enumerate(made.prompt_logprobs[1:])
        for token, entry in row.items()
    }
    near = torch.tensor(list(found.values()))
    wanted = torch.stack([logprobs[place, token] for place, token in found])
    return float((near - wanted).norm() / wanted.norm())


@pytest.mark.nightly
@pytest.mark.usefixtures("tokenizer_here", "forked_children")
def test_ranks_take_their_pieces_of_a_file(tmp_path):
    path = gguf_files.write(tmp_path / "small.gguf", kind=Kind.Q4_K)
    _, _, tokens, _ = expected(path)
    with LLM(model=str(path), dtype="float32", executor="mp", tensor_parallel_size=2) as llm:
        (made,) = llm.generate([PROMPT], GREEDY, use_tqdm=False)
    assert list(made.outputs[0].token_ids) == tokens


@pytest.mark.nightly
@pytest.mark.usefixtures("tokenizer_here")
def test_weights_that_were_dropped_are_read_from_the_file_again(tmp_path):
    path = gguf_files.write(tmp_path / "small.gguf", kind=Kind.Q4_K)
    _, _, tokens, _ = expected(path)
    with LLM(model=str(path), dtype="float32") as llm:
        llm.sleep(level=2)
        llm.wake_up()
        (made,) = llm.generate([PROMPT], GREEDY, use_tqdm=False)
    assert list(made.outputs[0].token_ids) == tokens


@pytest.mark.nightly
@pytest.mark.usefixtures("tokenizer_here")
def test_adapters_add_to_the_layers_of_a_file(tmp_path):
    """As peft does on the file read by transformers; a request without one gets the tokens of the file."""
    path = gguf_files.write(tmp_path / "small.gguf", kind=Kind.Q8_0)
    prompt, _, plain, _ = expected(path)
    model = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32
    )
    torch.manual_seed(3)
    config = LoraConfig(r=4, lora_alpha=32, target_modules="all-linear", init_lora_weights=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft uses a deprecated function of transformers
        adapted = get_peft_model(model, config).eval()
        adapted.save_pretrained(tmp_path / "adapter")
    with torch.no_grad():
        made = adapted.generate(
            input_ids=torch.tensor([prompt]),
            max_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=None,
        )
    wanted = made[0, len(prompt) :].tolist()
    with LLM(model=str(path), dtype="float32", max_loras=1, max_lora_rank=4) as llm:
        mine = llm.add_lora("mine", str(tmp_path / "adapter"))
        (with_it,) = llm.generate([PROMPT], GREEDY, adapter=mine, use_tqdm=False)
        (without,) = llm.generate([PROMPT], GREEDY, use_tqdm=False)
    assert list(with_it.outputs[0].token_ids) == wanted != plain
    assert list(without.outputs[0].token_ids) == plain
