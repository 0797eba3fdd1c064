"""A fault of the IO processor in a route names the plugin, without its file for clients."""

from __future__ import annotations

from typing import Any

import pytest

from tenonry.errors import PluginFault
from tenonry_openai_server.routes.named_calls import NamedCalls

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("call", "path", "body"),
    [
        ("encode", "/tokenize", {"prompt": "ab"}),
        ("decode", "/detokenize", {"tokens": [104]}),
        ("process_prompt", "/tokenize", CHAT),
        ("render_chat", "/v1/chat/completions", CHAT),
    ],
)
@pytest.mark.parametrize("is_missing", [True, False])
def test_the_plugin_is_named(call: str, path: str, body: Any, is_missing, api, monkeypatch, caplog):
    def result(*_: Any, **__: Any) -> None:
        if not is_missing:
            raise KeyError("on purpose")

    monkeypatch.setattr(type(api.engine.io_processor), call, result)
    response = api.post(path, body)
    assert response.status_code == 500
    assert "plugin 'CharacterIO' failed on this request" in response.json()["error"]["message"]
    with pytest.raises(
        PluginFault, match=rf"plugin CharacterIO .* failed in {call} at .*\.py:\d+: "
    ) as caught:
        getattr(NamedCalls.of(api.engine.io_processor), call)("a")
    text = "TypeError: the result is None; it must be of type" if is_missing else "KeyError"
    assert text in str(caught.value)
