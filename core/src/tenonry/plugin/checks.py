"""Checks of a plugin class before anything starts: interface, completeness, signatures, spelling.

Run by the resolver in the front end, by `tenonry plugins show`, and by the conformance suites.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from tenonry.config import read
from tenonry.errors import ConfigError, PluginError, PluginIncompatible
from tenonry.info import PluginRecord
from tenonry.interfaces.plugin import NoOptions
from tenonry.point import Point


def supported_versions(interface: Any) -> range:
    """Interface versions supported by this kernel: the current and the previous one."""
    current: int = interface.interface_version
    return range(max(1, current - 1), current + 1)


def check_plugin(found: Any, record: PluginRecord, point: Point) -> None:
    """Raise PluginIncompatible, with the plugin, its file and line, unless `found` fits the point.

    Without a base class the check is left to the point's owner, except the options.
    """
    base: Any = point.load_base()
    problem = _wrong_options(found)
    if not problem and base is not None:
        problem = wrong_class(found, base, point)
        problem = problem or _misspelt(found, base) or _wrong_signature(found, base)
    if problem:
        raise PluginIncompatible(f"{record.label()} {problem}")


def wrong_class(found: Any, base: Any, point: Point) -> str:
    """Return the reason why `found` does not implement the interface, or ""."""
    if not (inspect.isclass(found) and issubclass(found, base)):
        return f"is not a subclass of {base.__module__}.{base.__qualname__}; it stands at {where(found)}"
    missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
    if missing:
        return f"does not implement {missing} of {base.__name__}; it stands at {where(found)}"
    version = getattr(found, "interface_version", None)
    if version is None or version in supported_versions(base):
        return ""
    return (
        f"speaks version {version!r} of the {point.kind} interface; this kernel can drive "
        f"{list(supported_versions(base))}; it stands at {where(found)}; port it, or install another release"
    )


def load_options(record: PluginRecord, found: Any) -> BaseModel:
    """Return the user's options, validated by the plugin's `Options`. Raises PluginError naming each bad key."""
    model: type[BaseModel] = getattr(found, "Options", NoOptions)
    known = model.model_fields
    try:
        return read(model, record.options, known)
    except ConfigError as error:
        raise PluginError(
            f"options of {record.label()} are not valid: {error}; "
            f"known options: {', '.join(known) or 'none'}"
        ) from None


def where(thing: Any) -> str:
    """File and line of a class or function."""
    with contextlib.suppress(OSError, TypeError):
        return f"{inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]}"
    return "unknown file"


def _wrong_options(found: Any) -> str:
    for name in ("Options", "Settings"):
        model = getattr(found, name, BaseModel)
        if not (inspect.isclass(model) and issubclass(model, BaseModel)):
            return (
                f"has {name} that are no pydantic model: {model!r}, in the class at {where(found)}; write: class "
                f"{name}(Plugin{name})"
            )
    return ""


@lru_cache
def _misspelt(found: type, base: type) -> str:
    """An unused public member one or two letters away from an overridable one, or ""."""
    used: set[str] = set()
    for place, owner in enumerate(found.__mro__):
        if owner is base:
            break
        inherited = {name for parent in found.__mro__[place + 1 :] for name in vars(parent)}
        own = vars(owner).keys()
        for member in vars(owner).values():
            if inspect.isfunction(member):
                used.update(member.__code__.co_names)
        for name in own - inherited - used:
            near = difflib.get_close_matches(name, inherited - own, n=1, cutoff=0.85)
            if near and not name.startswith("_"):
                return (
                    f"has a member '{name}', in the class at {where(owner)}, that is never called; did you mean "
                    f"'{near[0]}'? Else write: _{name}"
                )
    return ""


@lru_cache
def _wrong_signature(found: type, base: type) -> str:
    """A method whose signature does not accept the arguments of the interface, or of an abstract method above it."""
    for owner in reversed(found.__mro__[:-1]):  # without object
        for name, member in vars(owner).items():
            is_public = name == "__init__" or not name.startswith("_")
            is_interface = owner in base.__mro__ and is_public
            if not is_interface and not getattr(member, "__isabstractmethod__", False):
                continue
            mine = inspect.getattr_static(found, name)
            are_functions = inspect.isfunction(member) and inspect.isfunction(mine)
            if are_functions and not _takes(mine, member):
                wanted = str(inspect.signature(member)).replace("'", "")
                return (
                    f"has {name}{inspect.signature(mine)} at {where(mine)}, which cannot be called as "
                    f"{owner.__name__} declares it; write: def {name}{wanted}"
                )
    return ""


def _takes(function: Any, declared: Any) -> bool:
    """Return True if it can be called with all declared arguments, and with the required ones alone."""
    parameters = inspect.signature(declared).parameters.values()
    required = [each for each in parameters if each.default is each.empty]
    own = inspect.signature(function, follow_wrapped=False)
    for given in (parameters, required):
        positional = [each for each in given if each.kind <= each.POSITIONAL_OR_KEYWORD]
        keywords = {each.name: each for each in given if each.kind is each.KEYWORD_ONLY}
        try:
            own.bind(*positional, **keywords)
        except TypeError:
            return False
    return True
