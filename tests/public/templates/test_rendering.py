"""Prompts are those that transformers renders from the same template and messages, or both reject the messages."""

from __future__ import annotations

import pytest
from conversations import SPECIAL, TOOLS, USER, rendered
from families import FAMILIES

LEAST_EQUAL = 0.99
USER_MESSAGE = {"role": "user", "content": USER}
CHATS = {
    "user": [USER_MESSAGE],
    "system": [{"role": "system", "content": "Be brief."}, USER_MESSAGE],
    "turns": [
        USER_MESSAGE,
        {"role": "assistant", "content": "Warm."},
        {"role": "user", "content": "So?"},
    ],
}


def by_transformers(source, messages, tools):
    """The prompt as transformers renders it, content as text or as parts: none, one or both of the two."""
    from transformers.utils.chat_template_utils import render_jinja_template

    found = set()
    parts = [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        for message in messages
    ]
    for chat in (messages, parts):
        try:
            texts, _ = render_jinja_template(
                [chat], chat_template=source, tools=tools, add_generation_prompt=True, **SPECIAL
            )
        except Exception:
            continue
        found.add(texts[0])
    return found


def differs(source):
    """The first chat that is rendered otherwise; None for no difference."""
    for name, messages in CHATS.items():
        for tools in (None, TOOLS):
            ours = rendered(source, messages, tools=tools, add_generation_prompt=True)
            theirs = by_transformers(source, messages, tools)
            if ours is not None and theirs and ours not in theirs:
                return name, ours, theirs
    return None


@pytest.mark.nightly_after(12)
@pytest.mark.parametrize("family", FAMILIES)
def test_as_transformers(family):
    assert differs(FAMILIES[family].source) is None


def test_public_templates_as_transformers(public_templates):
    wrong = {name: differs(source) for name, source in public_templates.items()}
    wrong = {name: difference for name, difference in wrong.items() if difference}
    print(
        f"{len(public_templates) - len(wrong)} of {len(public_templates)} templates as transformers renders them"
    )
    assert len(wrong) <= (1 - LEAST_EQUAL) * len(public_templates), wrong
