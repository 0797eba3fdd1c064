"""What a plugin class must be before anything starts: of its interface, complete, callable, and spelt right.

Run by the resolver in the front end, by `tenonry plugins show`, and by the conformance suites.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
from typing import Any

from pydantic import BaseModel, ValidationError

from tenonry.config import explain
from tenonry.errors import PluginError, PluginIncompatible
from tenonry.info import PluginRecord
from tenonry.interfaces.plugin import NoOptions
from tenonry.point import Point

NEAR = 0.85
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def supported_versions(interface: Any) -> range:
    """The interface versions that this kernel can drive: its own and the one before."""
    current: int = interface.interface_version
    return range(max(1, current - 1), current + 1)


def check_plugin(found: Any, record: PluginRecord, point: Point) -> None:
    """Raises PluginIncompatible, with the plugin, its file and line, unless `found` is what the point asks for.

    A point without a base class leaves it to its owner.
    """
    label = record.label()
    problem = _wrong_options(found)
    if problem:
        raise PluginIncompatible(f"{label}: {problem}")
    base = point.load_base()
    if base is None:
        return
    if not (isinstance(found, type) and issubclass(found, base)):
        raise PluginIncompatible(
            f"{label} is not a subclass of {base.__module__}.{base.__qualname__}"
        )
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise PluginIncompatible(
            f"{label} does not implement {', '.join(missing)} of {base.__name__}"
        )
    version = getattr(found, "interface_version", None)
    if version is not None and version not in supported_versions(base):
        raise PluginIncompatible(
            f"{label} speaks version {version} of the {point.kind} interface; this kernel can drive "
            f"{list(supported_versions(base))}"
        )
    problem = _misspelt(found, base) or _wrong_signature(found)
    if problem:
        raise PluginIncompatible(f"{label}: {problem}")


def load_options(record: PluginRecord, found: Any) -> BaseModel:
    """The user's options, validated by the plugin's `Options`. Raises PluginError naming each bad key."""
    model: type[BaseModel] = getattr(found, "Options", NoOptions)
    try:
        return model.model_validate(record.options)
    except ValidationError as error:
        known = list(model.model_fields)
        raise PluginError(
            f"options of {record.label()} are not valid: {explain(error, known)}; "
            f"known options: {', '.join(known) or 'none'}"
        ) from None


def _where(thing: Any) -> str:
    """The file and line of a class or function."""
    with contextlib.suppress(OSError, TypeError):
        return f"{inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]}"
    return "unknown file"


def _wrong_options(found: Any) -> str:
    options = getattr(found, "Options", NoOptions)
    if isinstance(options, type) and issubclass(options, BaseModel):
        return ""
    return (
        f"Options of the class at {_where(found)} is {options!r}, which is no pydantic model; "
        "write: class Options(PluginOptions)"
    )


def _misspelt(found: type, base: type) -> str:
    """A public member that differs by a letter or two from one that could be overridden: it would never be called."""
    for place, owner in enumerate(found.__mro__):
        if owner is base:
            break
        inherited = {name for parent in found.__mro__[place + 1 :] for name in vars(parent)}
        for name in vars(owner).keys() - inherited:
            known = inherited - vars(owner).keys()
            near = difflib.get_close_matches(name, known, n=1, cutoff=NEAR)
            if near and not name.startswith("_"):
                return (
                    f"'{name}' of the class at {_where(owner)} is never called; did you mean '{near[0]}'? "
                    f"Else write: _{name}"
                )
    return ""


def _wrong_signature(found: type) -> str:
    """A method that cannot take what the class that declares it says that it is given."""
    declared: dict[str, tuple[type, Any]] = {}
    for owner in found.__mro__[:-1]:  # without object
        declared |= {name: (owner, member) for name, member in vars(owner).items()}
    for name, (owner, member) in declared.items():
        mine = inspect.getattr_static(found, name)
        called = not name.startswith("_") or name == "__init__"
        if called and inspect.isfunction(member) and inspect.isfunction(mine):
            if not _takes(mine, member):
                wanted = str(inspect.signature(member)).replace("'", "")
                return (
                    f"{name}{inspect.signature(mine)} at {_where(mine)} cannot be called as {owner.__name__} "
                    f"declares it; write: def {name}{wanted}"
                )
    return ""


def _takes(function: Any, declared: Any) -> bool:
    """Whether it can be called with all that is declared, and with the least."""
    every = inspect.signature(declared).parameters.values()
    required = [one for one in every if one.default is one.empty]
    for given in (every, required):
        positional = [one for one in given if one.kind in POSITIONAL]
        keywords = {one.name: one for one in given if one.kind is one.KEYWORD_ONLY}
        try:
            inspect.signature(function).bind(*positional, **keywords)
        except TypeError:
            return False
    return True
