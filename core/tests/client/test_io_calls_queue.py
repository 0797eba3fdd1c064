"""A full queue of an IO processor's helper is no failure of the plugin: the caller may try again."""

from __future__ import annotations

import pytest

from tenonry.client.io_calls import io_call
from tenonry.errors import EngineGenerateError, QueueFullError, RequestError


@pytest.mark.parametrize("error", [QueueFullError("full"), RequestError("wrong")])
def test_errors_of_the_request_pass(error):
    with pytest.raises(type(error)), io_call(object(), "r", "process_prompt"):
        raise error


def test_others_name_the_plugin():
    with (
        pytest.raises(EngineGenerateError, match="process_prompt"),
        io_call(object(), "r", "process_prompt"),
    ):
        raise KeyError("x")
