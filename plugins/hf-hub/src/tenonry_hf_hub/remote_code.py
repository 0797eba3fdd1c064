"""Notes on models that ship Python code: it is never run. Any process."""

from __future__ import annotations

from typing import Any


def remote_code_note(config: dict[str, Any]) -> str:
    """A sentence for the error about an unknown architecture, or "" when the model's config.json names no code.

    `config`: the parsed config.json. Nothing here decides anything: `auto_map` is read by no other code.
    """
    auto_map = config.get("auto_map")
    if not auto_map:
        return ""
    named = (
        sorted({str(value) for value in auto_map.values()})
        if isinstance(auto_map, dict)
        else [str(auto_map)]
    )
    return (
        f"the model's folder brings Python code of its own ({', '.join(named)[:200]}), which is never run: a model's "
        "code comes from installed packages; look for a release of transformers, or a worker plugin, that knows it"
    )
