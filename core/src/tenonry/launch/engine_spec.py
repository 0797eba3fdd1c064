"""Writes down, as text, all that an engine's process needs. Front end, supervisor or headless node."""

from __future__ import annotations

from typing import Any

import msgspec

from tenonry.config import EngineConfig
from tenonry.interfaces.launcher import EngineSpec
from tenonry.model_info import ModelInfo
from tenonry.plugin_plan import PluginPlan
from tenonry.sockets import CurveKeys


def engine_spec(
    config: EngineConfig, plan: PluginPlan, model: ModelInfo, *, curve: CurveKeys | None, **fields: Any
) -> EngineSpec:
    """The spec; `fields` are those that differ between the engines of an instance."""
    return EngineSpec(
        config_text=config.model_dump_json(),
        plan_text=plan.encode(),
        model_text=msgspec.json.encode(model).decode(),
        curve_keys="" if curve is None else curve.encode(),
        **fields,
    )
