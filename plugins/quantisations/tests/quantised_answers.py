"""Answers of an engine with a small model, without the libraries that `quantised_models` imports."""

from __future__ import annotations

import torch

from tenonry import LLM, SamplingParams

VOCABULARY = 64
PROMPT = [5, 17, 40, 2, 33, 8, 21, 60, 11, 3]
GREEDY = SamplingParams(
    temperature=0, max_tokens=6, ignore_eos=True, detokenize=False, prompt_logprobs=VOCABULARY
)


def answers(folder, dtype="float32", **settings):
    """Log-probabilities of each next token of the prompt [T − 1, vocabulary], and the tokens that follow."""
    settings = {"worker": "torch"} | settings
    with LLM(model=str(folder), io_processor="none", dtype=dtype, **settings) as llm:
        (made,) = llm.generate([{"prompt_token_ids": PROMPT}], GREEDY, use_tqdm=False)
    found = torch.zeros(len(PROMPT) - 1, VOCABULARY)
    for place, row in enumerate(made.prompt_logprobs[1:]):
        for token, entry in row.items():
            found[place, token] = entry.logprob
    return found, list(made.outputs[0].token_ids)
