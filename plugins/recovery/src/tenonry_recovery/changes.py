"""Settings that replacement engines may change while requests are open. Front end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from tenonry.config import EngineConfig, explain, fact
from tenonry.errors import ConfigError

HINTS = {
    "data_parallel_size": "use AsyncLLM.scale or POST /scale",
    "lora_modules": "use AsyncLLM.add_lora",
}
ELSEWHERE = "start another server with it, and move clients there"


def changed(
    config: EngineConfig, changes: Mapping[str, Any], parts: Mapping[str, FieldInfo]
) -> EngineConfig:
    """The configuration with these changes; `parts`: settings of the plugins in use.

    Raises ConfigError for a change that open requests would not survive.
    """
    fields = {**EngineConfig.model_fields, **parts}
    can_change = [name for name, field in fields.items() if fact(field, "replaceable")]
    for name in changes:
        if name in fields and name not in can_change:
            raise ConfigError(
                f"{name} cannot change while engines are replaced: open requests and the front end count on it; "
                f"{HINTS.get(name, ELSEWHERE)}. What can change: {', '.join(can_change)}"
            )
    try:
        return config.replaced(**changes)
    except ValidationError as error:
        raise ConfigError(explain(error, fields)) from None
