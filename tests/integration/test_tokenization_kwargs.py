"""`tokenization_kwargs` of every way to generate: prompts are cut to their last tokens, as over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tenonry import LLM, AsyncLLM, EngineConfig, SamplingParams
from tenonry.errors import RequestError

GREEDY = SamplingParams(temperature=0, max_tokens=4)
TEXT = "Once upon a time there was a cat that sat on the mat"
CHAT = [{"role": "user", "content": TEXT}]
LAST = {"truncate_prompt_tokens": 3}


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo") as made:
        yield made


def test_a_prompt_keeps_its_last_tokens(llm: LLM):
    (whole,) = llm.generate(TEXT, GREEDY)
    (cut,) = llm.generate(TEXT, GREEDY, tokenization_kwargs=LAST)
    assert cut.prompt_token_ids == whole.prompt_token_ids[-3:]
    (same,) = llm.generate({"prompt_token_ids": cut.prompt_token_ids}, GREEDY)
    assert same.outputs[0].token_ids == cut.outputs[0].token_ids
    (ids,) = llm.generate(
        {"prompt_token_ids": whole.prompt_token_ids}, GREEDY, tokenization_kwargs=LAST
    )
    assert ids.prompt_token_ids == cut.prompt_token_ids


def test_minus_one_keeps_what_the_model_reads(llm: LLM):
    longest = llm.info.max_model_len
    ids = list(range(5, 15)) * longest
    with pytest.raises(RequestError, match=f"{len(ids)}"):
        llm.generate({"prompt_token_ids": ids}, GREEDY)
    (cut,) = llm.generate(
        {"prompt_token_ids": ids}, GREEDY, tokenization_kwargs={"truncate_prompt_tokens": -1}
    )
    assert cut.prompt_token_ids == ids[1 - longest :]


def test_a_chat_keeps_its_last_tokens(llm: LLM):
    (whole,) = llm.chat(CHAT, GREEDY)
    (cut,) = llm.chat(CHAT, GREEDY, tokenization_kwargs=LAST)
    assert cut.prompt_token_ids == whole.prompt_token_ids[-3:]


def test_bounds_are_named(llm: LLM):
    with pytest.raises(RequestError, match=r"truncate_prompt_tokens=0 is out of bounds: 1 to"):
        llm.generate(TEXT, GREEDY, tokenization_kwargs={"truncate_prompt_tokens": 0})
    with pytest.raises(RequestError, match="not supported: padding"):
        llm.generate(TEXT, GREEDY, tokenization_kwargs={"padding": True})


def test_a_stream_keeps_the_last_tokens_of_its_prompt():
    engine = AsyncLLM(EngineConfig(model="demo"))

    async def ids(**fields: object) -> list[int]:
        outputs = [each async for each in engine.generate(TEXT, GREEDY, "r", **fields)]
        return outputs[-1].prompt_token_ids

    async def main() -> tuple[list[int], list[int]]:
        return await ids(), await ids(tokenization_kwargs=LAST)

    try:
        whole, cut = asyncio.run(main())
    finally:
        engine.shutdown()
    assert cut == whole[-3:]
