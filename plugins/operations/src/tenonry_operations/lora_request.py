"""`lora_request` of `generate`, as in vLLM: an adapter by name and path, loaded on its first use. Front end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tenonry.errors import RequestError
from tenonry.sampling_params import check_type

FIELD = "lora_request"


class LoRARequest(msgspec.Struct, frozen=True):
    """An adapter of a request.

    `lora_name` identifies it; `lora_int_id` has no effect. `lora_path`: a folder of peft. `load_inplace`: load the
    folder again, in place of a loaded adapter of this name.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    load_inplace: bool = False

    def __post_init__(self) -> None:
        for info in msgspec.structs.fields(LoRARequest):
            check_type(info.name, getattr(self, info.name), info.type)


def must_load(request: Any, paths: Mapping[str, str], loaded: Mapping[str, Any]) -> bool:
    """Return True if the adapter has yet to be loaded. `paths` of adapters and `loaded` ones, by name.

    Raises RequestError for a name that is in use with another path, and for values that are no LoRARequest.
    """
    if not isinstance(request, LoRARequest):
        raise RequestError(
            f"lora_request={request!r:.80} must be a LoRARequest, or for LLM.generate a list of one per prompt",
            FIELD,
        )
    name = request.lora_name
    if request.load_inplace or name not in loaded:
        if not request.lora_path:
            raise RequestError(
                f"lora_request: no adapter is called {name!r:.80}; loaded: {', '.join(loaded) or 'none'}; give its "
                "folder as lora_path",
                FIELD,
            )
        return True
    path = paths.get(name, "")
    if path and request.lora_path and not _is_same(path, request.lora_path):
        raise RequestError(
            f"lora_request: the adapter {name!r:.80} was loaded from {path}, not {request.lora_path}; give another "
            "name, or load_inplace=True to replace it",
            FIELD,
        )
    return False


def start_paths(modules: Sequence[str]) -> dict[str, str]:
    """Paths by name of the setting `lora_modules`, which the worker has checked."""
    paths = {}
    for text in modules:
        name, _, path = text.partition("=")
        if text.startswith("{"):
            found = msgspec.json.decode(text)
            name, path = found["name"], found["path"]
        paths[name] = path
    return paths


def _is_same(one: str, other: str) -> bool:
    return Path(one).resolve() == Path(other).resolve()
