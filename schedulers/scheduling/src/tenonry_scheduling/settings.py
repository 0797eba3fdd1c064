"""Settings of schedulers on this library. Light: imported by the front end as well."""

from __future__ import annotations

from tenonry.config import PluginChoice, setting
from tenonry.interfaces.plugin import PluginSettings


class SchedulingSettings(PluginSettings):
    """Settings of every scheduler on `BaseScheduler`; a subclass with others derives its model from this one."""

    drafter: PluginChoice | None = setting(
        None, capability="drafts", group="plugins", replaceable=True
    )
    """Drafter for speculative decoding: ngram or model."""


class ValidatorSettings(PluginSettings):
    """Settings of the step observer `validator`."""

    validate_scheduler: bool = setting(True, replaceable=True)
    """Validate every scheduler step against its contract."""
