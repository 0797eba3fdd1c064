"""Settings of schedulers on this library. Light: imported by the front end as well."""

from __future__ import annotations

from tenonry.config import PluginChoice, Settings, setting
from tenonry.interfaces.plugin import PluginSettings


class WorkerDrafter(Settings):
    """A setting of the worker from the view of a scheduler: steps are planned for drafts if there are any."""

    drafter: PluginChoice | None = None


class ValidatorSettings(PluginSettings):
    """Settings of the step observer `validator`."""

    validate_scheduler: bool = setting(True, replaceable=True)
    """Validate every scheduler step against its contract."""
