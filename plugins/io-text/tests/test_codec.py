"""Long texts and long lists of ids release the interpreter: a front end keeps serving other requests."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest


def turns_of_others(work: Callable[[], object]) -> int:
    """Number of times this thread runs while `work` runs in another one."""
    begun, done = threading.Event(), threading.Event()

    def run() -> None:
        begun.set()
        work()
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    turns = 0
    while not done.wait(0.0005):
        turns += 1
    thread.join()
    return turns


@pytest.mark.parametrize("call", ["encode", "decode"])
def test_a_long_text_holds_up_nobody(call, tokenizer_folders, make_processor):
    """Reliability, fault 20: large input costs its own request time, and no other."""
    processor = make_processor(tokenizer_folders["byte_level"], max_model_len=1 << 20)
    ids = processor.encode("the quick brown fox über 😀 " * 20_000)
    text = processor.decode(ids)
    work = {"encode": lambda: processor.encode(text), "decode": lambda: processor.decode(ids)}
    assert turns_of_others(work[call]) > 10


def test_a_batch_of_one_is_what_the_library_says_of_one(tokenizer_folders, make_processor):
    processor = make_processor(tokenizer_folders["llama"])
    tokenizer = processor._codec.tokenizer
    for text in ("a cat", "über 😀", " ", "<s>x</s>"):
        for special in (True, False):
            ids = tokenizer.encode(text, add_special_tokens=special).ids
            assert processor.encode(text, add_special_tokens=special) == ids
            assert processor.decode(ids, skip_special_tokens=special) == tokenizer.decode(
                ids, special
            )
