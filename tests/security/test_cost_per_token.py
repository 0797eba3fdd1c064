"""The cost of a token does not depend on how many came before it, to 32 000 (class Y).

Counted, not timed: calls of functions in a window of tokens at the start and at the end of a long answer, and the
memory that an answer holds.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tenonry.config import EngineConfig
from tenonry.info import ModelInfo
from tenonry.interfaces.io_processor import IOProcessorContext
from tenonry.point import Point
from tenonry.sampling_params import SamplingParams
from tenonry_demo_model import model_path
from tenonry_io_text.processor import TextIOProcessor
from tenonry_output_parsers.base import OutputParser, ParserContext, Tool
from tenonry_testkit.tiers import diagonal, nightly_unless

NUM_TOKENS = 32_000
FEWER = 8_000  # what grows with each token has grown sixteenfold
WINDOW = 500
PARSERS = sorted(
    importlib.metadata.entry_points(group="tenonry.output_parsers"), key=lambda one: one.name
)
# What an answer begins with, and what follows again and again.
TEXTS = {
    "words": ([], ["a word, and <b>"]),
    "an open call": (['<tool_call>\n{"name": "f", "arguments": {"x": "'], ["text < and "]),
    "open reasoning": (["<think>"], ["because < so "]),
    "nothing but marks": ([], ["<tool_call>", "<", "[TOOL_CALLS]", "<|", "```"]),
}


def calls_in(work: Callable[[], None]) -> int:
    """Return how many functions `work` calls, those in C included."""
    count = 0

    def counted(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def compare_windows(feed: Callable[[int], None], num_tokens: int = NUM_TOKENS) -> None:
    """Feed `num_tokens` pieces; the last window may call no more functions than an early one."""
    counts = []
    for start in range(0, num_tokens, WINDOW):
        window = range(start, start + WINDOW)
        if start in {WINDOW, num_tokens - WINDOW}:
            counts.append(calls_in(lambda window=window: [feed(each) for each in window]))
        else:
            for each in window:
                feed(each)
    early, late = counts
    assert late <= 1.2 * early + 50


@pytest.fixture(scope="module")
def processor() -> TextIOProcessor:
    path = str(model_path())
    model = ModelInfo(name="demo", path=path, architecture="", max_model_len=65536, vocab_size=2048)
    return TextIOProcessor(IOProcessorContext(EngineConfig(model=path), model=model))


@pytest.mark.parametrize("stops", [0, 64], ids=["no stop string", "64 stop strings"])
def test_a_detokenizer(processor, stops):
    params = SamplingParams(stop=[f"never {number} said" for number in range(stops)] or None)
    detokenizer = processor.make_detokenizer([1, 2, 3], params)
    ids = np.random.default_rng(3).integers(300, 1800, NUM_TOKENS).tolist()
    compare_windows(lambda each: detokenizer.push([ids[each]]))
    assert detokenizer.stop_reason is None


@pytest.mark.parametrize(
    "num_tokens", nightly_unless(lambda count: count == FEWER, [FEWER, NUM_TOKENS])
)
@pytest.mark.parametrize(("parser", "text"), diagonal([one.name for one in PARSERS], TEXTS))
def test_an_output_parser(parser, text, num_tokens):
    made = make(parser)
    first, others = TEXTS[text]
    pieces = itertools.chain(first, itertools.cycle(others))
    compare_windows(lambda _: made.feed(next(pieces), [5]), num_tokens)


def make(name: str) -> OutputParser:
    (found,) = (one for one in PARSERS if one.name == name)
    return found.load()(ParserContext(tools=(Tool("f"),)))


def test_every_parser_is_tried():
    assert Point("tenonry.output_parsers").kind == "output_parser"
    assert len(PARSERS) > 8
    assert Path(model_path()).exists()
