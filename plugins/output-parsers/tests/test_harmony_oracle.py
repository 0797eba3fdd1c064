"""The parser `harmony` beside OpenAI's own, openai-harmony, on conversations that hypothesis makes.

openai-harmony downloads its vocabulary, or reads it from the folder in TIKTOKEN_ENCODINGS_BASE, and checks its digest.
Wheels of llama-index-core and of litellm carry the same file. Neither is part of development's requirements, which are
small; `pip install --no-deps openai-harmony llama-index-core` is all that these tests need.
"""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenonry_output_parsers.base import ParserContext, Tool
from tenonry_output_parsers.events import (
    CallArguments,
    CallEnd,
    CallStart,
    ReasoningDelta,
    TextDelta,
)
from tenonry_output_parsers.harmony import Harmony

VOCABULARY = "o200k_base.tiktoken"
CACHED = "fb374d419588a4632f3f557e76b4b70aebbca790"  # how caches of tiktoken call it
FOLDER = "TIKTOKEN_ENCODINGS_BASE"
TOOLS = (Tool("add"), Tool("say.it"))


def vocabulary() -> Path | None:
    """The file, where a package or the environment has it."""
    given_folder = os.environ.get(FOLDER)
    if given_folder:
        return Path(given_folder) / VOCABULARY
    for name in ("llama-index-core", "litellm"):
        try:
            files = importlib.metadata.files(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == CACHED:
                return Path(file.locate())
    return None


@pytest.fixture(scope="module")
def oracle(tmp_path_factory):
    """OpenAI's library and its encoding, read without network."""
    library = pytest.importorskip("openai_harmony", reason="openai-harmony is not installed")
    found = vocabulary()
    if found is None:
        pytest.skip("no package with the vocabulary o200k_base is installed: llama-index-core")
    folder = tmp_path_factory.mktemp("encodings")
    (folder / VOCABULARY).write_bytes(found.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(FOLDER, str(folder))
        yield library, library.load_harmony_encoding(library.HarmonyEncodingName.HARMONY_GPT_OSS)


texts = st.text('ab <>|é🦊"{}\n.:', max_size=12)
words = st.sampled_from(["", " "])
analysis = texts.map(lambda text: f"<|channel|>analysis<|message|>{text}")
preamble = texts.map(lambda text: f"<|channel|>commentary<|message|>{text}")
final = texts.map(lambda text: f"<|channel|>final<|message|>{text}")
arguments = st.sampled_from(['{"a": 1}', "{}", '{"t": "<é\\n|>"}'])
calls = st.builds(
    lambda name, constraint, value: (
        f"<|channel|>commentary to=functions.{name}{constraint}<|message|>{value}"
    ),
    st.sampled_from(["add", "say.it"]),
    st.sampled_from(["", " <|constrain|>json", " json"]),
    arguments,
)
turns = st.lists(analysis | preamble | calls, max_size=4)
ends = st.sampled_from(["", "<|return|>", "<|end|>"])


def merged(events: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Neighbours of one kind put together; white space beside markup belongs to no text."""
    found: list[tuple[str, str]] = []
    for kind, text in events:
        stripped = text.strip()
        if not stripped:
            continue
        if found and found[-1][0] == kind and not kind.startswith("call"):
            stripped = found.pop()[1] + stripped
        found.append((kind, stripped))
    return found


def theirs(library, encoding, text: str) -> list[tuple[str, str]]:
    tokens = encoding.encode(text, allowed_special="all")
    messages = encoding.parse_messages_from_completion_tokens(
        tokens, library.Role.ASSISTANT, strict=False
    )
    found = []
    for message in messages:
        content = "".join(part.text for part in message.content)
        if message.recipient:
            found.append((f"call {message.recipient.removeprefix('functions.')}", content))
        else:
            kind = "reasoning" if message.channel == "analysis" else "text"
            found.append((kind, content))
    return merged(found)


def ours(text: str) -> list[tuple[str, str]]:
    parser = Harmony(ParserContext(TOOLS, "<|start|>assistant"))
    found: list[tuple[str, str]] = []
    for event in [*parser.feed(text, ()), *parser.close()]:
        if isinstance(event, CallStart):
            found.append((f"call {event.name}", ""))
        elif isinstance(event, CallArguments):
            found[-1] = (found[-1][0], found[-1][1] + event.text)
        elif isinstance(event, ReasoningDelta):
            found.append(("reasoning", event.text))
        elif isinstance(event, TextDelta):
            found.append(("text", event.text))
        else:
            assert isinstance(event, CallEnd)
    return merged(found)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(begun=turns, last=analysis | final | calls, end=ends)
def test_both_find_the_same_in_an_answer(oracle, begun, last, end):
    closed = [
        turn + ("<|call|>" if " to=" in turn else "<|end|>") + "<|start|>assistant"
        for turn in begun
    ]
    text = "".join(closed) + last + end
    assert ours(text) == theirs(*oracle, text)
