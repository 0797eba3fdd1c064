"""Messages between actors and their owners."""

from __future__ import annotations

from tenonry.errors import PluginError, PluginFault
from tenonry_executor_ray.wire import Failure


def test_a_fault_of_a_plugin_blames_it_also_elsewhere():
    fault = PluginFault("p", "dist", "1.0", "load", ValueError("v"))
    again = Failure.of(fault).error("rank 1")
    assert isinstance(again, PluginError)
    assert again.plugin == "p"
    assert str(again) == f"rank 1: {fault}"


def test_another_error_blames_none():
    assert Failure.of(ValueError("v")).error("rank 1").plugin == ""
