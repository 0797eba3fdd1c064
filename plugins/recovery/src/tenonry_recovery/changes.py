"""Which settings engines may have otherwise than those that they replace while requests are open. Front end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from tenonry.config import EngineConfig, explain
from tenonry.config.replaceable import REPLACEABLE
from tenonry.errors import ConfigError

HINTS = {
    "data_parallel_size": "use AsyncLLM.scale or POST /scale",
    "lora_modules": "use AsyncLLM.add_lora",
}
ELSEWHERE = "start another server with it, and move clients there"


def changed(config: EngineConfig, changes: Mapping[str, Any]) -> EngineConfig:
    """The configuration with these changes. Raises ConfigError for one that open requests would not survive."""
    for name in changes:
        if name in EngineConfig.model_fields and name not in REPLACEABLE:
            raise ConfigError(
                f"{name} cannot change while engines are replaced: open requests and the front end count on it; "
                f"{HINTS.get(name, ELSEWHERE)}. What can change: {', '.join(REPLACEABLE)}"
            )
    try:
        return config.replaced(**changes)
    except ValidationError as error:
        raise ConfigError(explain(error, list(EngineConfig.model_fields))) from None
