"""Amount of text kept alive by an object: in attributes, containers, closures, suspended generators. Test process."""

from __future__ import annotations

import gc
import types
from typing import Any

_NOT_FOLLOWED = (type, types.ModuleType, types.CodeType, types.BuiltinFunctionType)


def held_characters(thing: Any) -> int:
    """Characters of all texts reachable from `thing`, each text counted once.

    Classes, modules and the globals of functions are not followed.
    """
    seen: set[int] = set()
    waiting = [thing]
    characters = 0
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, _NOT_FOLLOWED):
            continue
        seen.add(id(one))
        if isinstance(one, str | bytes | bytearray):
            characters += len(one)
        elif isinstance(one, types.FunctionType):
            waiting += one.__closure__ or ()
        else:
            waiting += gc.get_referents(one)
    return characters
