"""Greedy output of the model in float32 on the CPU, as computed by transformers: the reference for every engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

# Importing transformers alone can take many seconds on a busy machine.
pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.slow,  # whole models
]

COMPLETIONS = {
    "Once upon a time": (
        ", there was a lively young fox named Kai. Kai lived in a cottage at the end of a long lane. One warm day, Kai"
        ' was walking to the harbour. Then he heard a thin voice. "Help! Help!" Kai looked around. A little bird was'
        " sitting in the grass. It"
    ),
    "The scheduler": (
        " has two queues. Requests that have not started wait in the waiting queue. Requests that have blocks are"
        " running. At each step the running requests come first. If there are tokens left in the budget, waiting"
        " requests may start. If there are no free blocks"
    ),
}
CHATS = {
    "Hello!": "Hello! How can I help you?",
    "What is 7 plus 5?": "7 plus 5 is 12.",
    "What is the capital of Japan?": "The capital of Japan is Tokyo.",
    "What is the opposite of hot?": "The opposite of hot is cold.",
    "How many legs does a cow have?": "A cow has four legs.",
    "Show me a smiling face.": "Here is a smiling face: 😊",
    "What is tenonry?": "Tenonry is a plugin-first inference engine for language models.",
    "What is a KV block?": "A KV block is a fixed run of slots in the KV cache, for example sixteen tokens long.",
    "Who won the football match yesterday?": "I am a very small model, and I do not know that.",
}


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    import torch
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(str(folder), dtype=torch.float32)


def greedy(model: Any, tokenizer: Tokenizer, prompt: str, max_tokens: int) -> str:
    """Return the continuation of `prompt`, up to an end token."""
    import torch

    ids = torch.tensor([tokenizer.encode(prompt).ids])
    mask = torch.ones_like(ids)
    options = {"do_sample": False, "temperature": None, "top_p": None, "max_new_tokens": max_tokens}
    new = model.generate(ids, attention_mask=mask, **options)[0, ids.shape[1] :]
    return tokenizer.decode(new.tolist(), skip_special_tokens=True)


def chat(*turns: str) -> str:
    """Write a chat of user and assistant in turns, and open the assistant's next turn."""
    roles = ("user", "assistant") * len(turns)
    written = "".join(
        f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in zip(roles, turns, strict=False)
    )
    return written + "<|im_start|>assistant\n"


@pytest.mark.parametrize("prompt", COMPLETIONS)
def test_plain_text_goes_on_as_expected(model: Any, tokenizer: Tokenizer, prompt: str) -> None:
    assert greedy(model, tokenizer, prompt, 64) == COMPLETIONS[prompt]


@pytest.mark.parametrize("question", CHATS)
def test_question_is_answered(model: Any, tokenizer: Tokenizer, question: str) -> None:
    assert greedy(model, tokenizer, chat(question), 40) == CHATS[question]


def test_chat_is_remembered(model: Any, tokenizer: Tokenizer) -> None:
    told = ("My name is Ada.", "Nice to meet you, Ada!", "What is 2 + 2?", "2 + 2 = 4")
    assert greedy(model, tokenizer, chat(*told, "What is my name?"), 20) == "Your name is Ada."
