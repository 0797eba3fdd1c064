"""Weight versions of requests' newest tokens, as engines send them. Front end."""

from __future__ import annotations

from collections.abc import Iterable

from tenonry.client.stream import Stream
from tenonry.messages import EngineCoreOutputs


class WeightVersions:
    """The version of each engine's weights, as its last tokens say; "" before the first update."""

    def __init__(self) -> None:
        self._by_engine: dict[int, str] = {}

    def read(self, outputs: EngineCoreOutputs, streams: Iterable[Stream]) -> None:
        """Note what one frame says. Open streams are looked at when that changed, or when requests began after that."""
        engine = outputs.engine_index
        version = outputs.weight_version
        if not len(outputs.handles):
            return
        is_known = version == self._by_engine.get(engine, "")
        if is_known and not (version and outputs.scheduled):
            return
        self._by_engine[engine] = version
        for stream in streams:
            if stream.engine_index == engine:
                stream.weight_version = version
