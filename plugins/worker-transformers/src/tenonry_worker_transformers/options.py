"""The options of the worker `transformers`. Read in the front end to check a command line, and in the worker."""

from __future__ import annotations

from pydantic import Field

from tenonry_torch_base.options import DeviceOptions


class TransformersOptions(DeviceOptions):
    """`--worker-option key=value`."""

    batching: bool = Field(
        True, description="Decode rows in batches if verified to give the same results."
    )
