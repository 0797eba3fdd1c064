"""Rules about the functions of a hook module: known hooks, and arguments that they have. Process of a check."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

from tenonry.config import nearest
from tenonry.plugin import hookspecs

MARK = f"{hookspecs.PROJECT}_impl"  # of pluggy, on a function that `hookimpl` decorates
SPEC = f"{hookspecs.PROJECT}_spec"


class HookFault(NamedTuple):
    """Fault of a hook module, and the function, or the module, to change."""

    text: str
    owner: Any


def hook_fault(module: Any) -> HookFault | None:
    """First function that no start accepts, or a module, or an object, without any hook."""
    hooks = {name: each for name, each in vars(hookspecs).items() if hasattr(each, SPEC)}
    members = [getattr(module, name, None) for name in dir(module)]
    marked = [each for each in members if isinstance(getattr(each, MARK, None), dict)]
    if not marked:
        bare = [name for name in hooks if inspect.isroutine(getattr(module, name, None))]
        where = f"its function {bare[0]} lacks @hookimpl" if bare else "write one, with @hookimpl"
        owner = getattr(module, bare[0]) if bare else module
        return HookFault(f"implements no hook; {where}", owner)
    for function in marked:
        options = getattr(function, MARK)
        name = options.get("specname") or function.__name__
        if name not in hooks and not options.get("optionalhook"):
            return HookFault(
                f"implements the unknown hook '{name}'{nearest(name, hooks)}", function
            )
        if name in hooks:
            known = inspect.signature(hooks[name]).parameters
            for each in inspect.signature(function).parameters:
                if each not in known:
                    text = f"declares the argument '{each}' of {name}, which has {', '.join(known)}"
                    return HookFault(f"{text}{nearest(each, known)}", function)
    return None
