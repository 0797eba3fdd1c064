"""The kernel's own engine recovery: streams of a dead engine end with an error. Front end."""

from __future__ import annotations

from pydantic import BaseModel

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.interfaces.recovery import EngineRecovery

NEEDED = ("engine_death", "standby_engines", "fallback_scheduler", "fallback_kv_connector")


class EndStreams(EngineRecovery):
    """No engine is restarted. It stands for `auto` where no other recovery is installed."""

    @classmethod
    def check(cls, config: EngineConfig, options: BaseModel) -> None:
        for name in NEEDED:
            value = getattr(config, name)
            if value not in ("stop", 0, None):
                raise ConfigError(
                    f"{name}={getattr(value, 'name', value)} needs engines that are restarted: pip install "
                    f"tenonry-recovery, and leave out --engine-recovery; or leave out {name}"
                )
