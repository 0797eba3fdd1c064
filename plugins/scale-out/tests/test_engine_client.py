"""`EngineClient` and `AsyncLLM` have the same members with the same signatures, and mocks are held to them."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any
from unittest.mock import create_autospec

import pytest

from tenonry.client.async_llm import AsyncLLM
from tenonry.info import ModelInfo
from tenonry_scale_out.engine_client import EngineClient

MEMBERS = {name: member for name, member in vars(EngineClient).items() if not name.startswith("_")}


@pytest.mark.parametrize("name", sorted(MEMBERS))
def test_async_llm_has_the_member(name: str):
    member, own = MEMBERS[name], inspect.getattr_static(AsyncLLM, name, None)
    if own is None:
        assert isinstance(member, property)
        assert name in AsyncLLM.__init__.__code__.co_names, "set nowhere"
        return
    assert type(member) is type(own)
    if not isinstance(member, property):
        assert inspect.signature(member) == inspect.signature(own)
        is_stream = inspect.isasyncgenfunction(own)
        assert inspect.iscoroutinefunction(member) == (
            inspect.iscoroutinefunction(own) and not is_stream
        )


def test_the_members_are_not_few():
    assert {"generate", "abort", "check_health", "shutdown", "errored"} <= MEMBERS.keys()


def test_a_mock_is_held_to_the_interface():
    engine: Any = create_autospec(EngineClient, instance=True)
    assert asyncio.run(engine.abort("r")) is not None
    engine.abort.assert_awaited_once_with("r")
    with pytest.raises(TypeError, match="sampling_params"):
        engine.generate("hi")
    with pytest.raises(AttributeError):
        engine.generat  # noqa: B018 - the access is the test


def test_what_has_the_members_is_one():
    class Fake:
        model = ModelInfo(name="m", path="", architecture="A", max_model_len=1, vocab_size=1)
        io_processor = None

    assert not isinstance(Fake(), EngineClient)
    for name in MEMBERS:
        setattr(Fake, name, print)
    assert isinstance(Fake(), EngineClient)
