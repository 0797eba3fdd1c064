"""The oracle: `generate` of transformers, greedy, float32, one prompt at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch

from parity_zoo.prompts import MAX_TOKENS

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CLOSE = 1e-4


class Answer(msgspec.Struct):
    """What `generate` makes of one prompt.

    Per token: its log-probability, and how far the second best logit is below it, in standard deviations of the logits.
    """

    prompt: list[int]
    token_ids: list[int]
    logprobs: list[float]
    gaps: list[float]


def load(folder: Path) -> PreTrainedModel:
    """The model as transformers reads it, in float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def answers(model: PreTrainedModel, prompts: list[list[int]]) -> list[Answer]:
    """`generate` for each prompt alone, with nothing that would stop or steer it."""
    from transformers import GenerationConfig

    model.generation_config = GenerationConfig(pad_token_id=0, bos_token_id=1)
    return [_answer(model, prompt) for prompt in prompts]


@torch.inference_mode()
def _answer(model: PreTrainedModel, prompt: list[int]) -> Answer:
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=MAX_TOKENS,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    logits = torch.cat(output.logits).float()
    token_ids = output.sequences[0, -MAX_TOKENS:]
    best = logits.topk(2, dim=-1).values
    logprobs = logits.log_softmax(-1).gather(1, token_ids[:, None])[:, 0]
    gaps = (best[:, 0] - best[:, 1]) / logits.std(-1)
    return Answer(prompt, token_ids.tolist(), logprobs.tolist(), gaps.tolist())


def is_telling(found: list[Answer]) -> bool:
    """Whether the tokens follow from the context: they change from place to place and from prompt to prompt."""
    several = [answer for answer in found if len(answer.prompt) > 1]
    changing = sum(len(set(answer.token_ids)) >= MAX_TOKENS // 2 for answer in several)
    different = len({tuple(answer.token_ids) for answer in several})
    return changing * 10 >= 8 * len(several) and different * 10 >= 8 * len(several)
