"""The training corpus: documents drawn from one seed, always in the same order. For the training script and the tests.

`python corpus.py` prints the corpus' size and sha256, `python corpus.py 5` prints the first five documents.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from random import Random

from chats import chat, written
from grammar import pick
from questions import (
    addition,
    animals,
    calendar,
    capitals,
    colours,
    opposites,
    product,
    question,
    simple_facts,
)
from stories import long_story, portrait, story, titled_story

import tenonry_facts

SEED = 20
NUM_DOCUMENTS = 40_000
SHA256 = "f7f6cf69ced6e97aa42bc77a3d31b2e98f94bc380ef8d869711afc6eeece4bed"


def drill(rng: Random) -> str:
    """Many sums on lines of their own."""
    topics = (
        addition if rng.random() < 0.8 else product for _ in range(8 + int(rng.random() * 24))
    )
    return "\n".join(topic(rng)[1] for topic in topics)


def facts(rng: Random) -> str:
    """Plain statements, a few to the paragraph."""
    topics = (animals, calendar, capitals, colours, opposites, simple_facts)
    return " ".join(pick(rng, topics)(rng)[1] for _ in range(3 + int(rng.random() * 8)))


def question_list(rng: Random) -> str:
    """Questions and answers as plain text."""
    pairs = [question(rng) for _ in range(2 + int(rng.random() * 6))]
    return "\n\n".join(f"Question: {asked}\nAnswer: {answer}" for asked, answer in pairs)


def manual(rng: Random) -> str:
    """Plain text about tenonry: a paragraph, or a glossary."""
    if rng.random() < 0.5:
        return pick(rng, tenonry_facts.PARAGRAPHS)
    terms = rng.sample(list(tenonry_facts.TERMS), 4)
    return " ".join(tenonry_facts.TERMS[term] for term in terms)


KINDS = (
    (0.17, story), (0.02, titled_story), (0.035, long_story), (0.06, drill), (0.09, facts), (0.08, question_list),
    (0.045, manual), (0.03, portrait),
)  # fmt: skip


def document(rng: Random) -> str:
    """One document; half of the documents are chats, more than half of the text is stories."""
    at = rng.random()
    for share, kind in KINDS:
        at -= share
        if at < 0:
            return kind(rng)
    return written(chat(rng))


def documents(seed: int = SEED) -> Iterator[str]:
    """Documents without end; the same seed gives the same documents on every machine."""
    rng = Random(seed)
    while True:
        yield document(rng)


def digest(count: int = NUM_DOCUMENTS, seed: int = SEED) -> tuple[str, int]:
    """Return the sha256 over the first `count` documents, each ended by a zero byte, and their size in characters."""
    sha, size = hashlib.sha256(), 0
    for _, text in zip(range(count), documents(seed), strict=False):
        sha.update(text.encode() + b"\0")
        size += len(text)
    return sha.hexdigest(), size


if __name__ == "__main__":
    if len(sys.argv) > 1:
        for _, text in zip(range(int(sys.argv[1])), documents(), strict=False):
            print(text, end="\n---\n")
    else:
        print(*digest(), sep="  ")
