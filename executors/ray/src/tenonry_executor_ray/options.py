"""User options of the launcher and of the executor. Front end and engine; imports no Ray."""

from __future__ import annotations

from pydantic import Field, field_validator

from tenonry.interfaces.plugin import PluginOptions

GROUP_VARIABLE = "TENONRY_RAY_PLACEMENT_GROUP"  # set by the launcher for the engine's process: the id of its group


class RayOptions(PluginOptions):
    """Ray cluster. `address`: `host:port` of the head or `auto`."""

    address: str | None = Field(None, max_length=512)
    namespace: str | None = Field(None, min_length=1, max_length=512)

    @field_validator("address")
    @classmethod
    def _no_client(cls, value: str | None) -> str | None:
        if (
            value is not None
            and value != "auto"
            and ("://" in value or not value.rpartition(":")[2].isdigit())
        ):
            raise ValueError(
                f"'{value}' is not the host:port of a Ray head, nor 'auto' (Ray Client is not supported)"
            )
        return value


class RayLauncherOptions(RayOptions):
    """`placement_group`: names of existing groups, one per engine. `num_cpus`: CPUs of an engine's process, and
    `num_cpus_per_rank` of each rank that has no GPU.
    """

    placement_group: tuple[str, ...] = ()
    num_cpus: float = Field(1.0, gt=0, le=4096)
    num_cpus_per_rank: float = Field(1.0, gt=0, le=4096)

    @field_validator("placement_group", mode="before")
    @classmethod
    def _names(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value


class RayExecutorOptions(RayOptions):
    """`placement_group`: the name of an existing group with a bundle per rank. `num_cpus` per rank."""

    placement_group: str | None = Field(None, min_length=1, max_length=512)
    num_cpus: float = Field(1.0, gt=0, le=4096)
