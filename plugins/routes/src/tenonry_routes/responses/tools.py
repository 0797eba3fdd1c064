"""Tools of a request as functions of a chat. Front end.

A namespace is a group of functions: each has one joined name for the model, and the answer contains both again. Tools
of other kinds are omitted and reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tenonry_routes.values import Ignore, refuse, text_of

SEPARATOR = "__"
NO_FUNCTION = "only functions are offered to the model"
Tool = dict[str, Any]


class OwnName(NamedTuple):
    """The client's name of a function."""

    namespace: str
    name: str


def joined_name(namespace: Any, name: str) -> str:
    """The model's name of a function in a namespace."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace.removesuffix(SEPARATOR)}{SEPARATOR}{name}"


def own_names(tools: Any) -> dict[str, OwnName]:
    """Joined name → the client's, of all functions in namespaces."""
    return {
        joined_name(space, tool["name"]): OwnName(space, tool["name"])
        for _, space, tool in _entries(tools)
        if space and isinstance(tool.get("name"), str)
    }


def field_names(fields: Mapping[str, Any], tools: Any) -> dict[str, str]:
    """Paths of a request's fields by those of the chat's `fields` that were made of them."""
    places = {joined_name(space, tool.get("name")): place for place, space, tool in _entries(tools)}
    names = {"response_format.json_schema": "text.format"}
    for index, tool in enumerate(fields.get("tools", ())):
        place = places.get(tool["function"].get("name"), "tools")
        names[f"tools[{index}].function"] = place
        names[f"tools.{index}.function"] = place
    return names


def add_tools(fields: dict[str, Any], body: Mapping[str, Any], ignore: Ignore) -> None:
    """Put tools and the choice among them into the fields of a chat. Raises RequestError."""
    tools = body.get("tools")
    if not isinstance(tools, list | None):
        refuse("tools", "must be a list")
    functions = []
    for place, space, tool in _entries(tools):
        kind = tool.get("type")
        if not isinstance(kind, str):
            refuse(f"{place.replace('[', '.').replace(']', '')}.type", "must be a text")
        if kind == "function":
            functions.append(_function(space, tool))
        else:
            ignore(f"{place} ({kind:.40})", NO_FUNCTION)
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        functions = _allowed(functions, choice)
        choice = choice.get("mode", "auto")
    if functions:
        fields["tools"] = functions
    elif choice == "required":
        refuse("tool_choice", "demands a call, and the tools hold no function that may be called")
    if choice is not None:
        fields["tool_choice"] = _named(choice) if isinstance(choice, dict) else choice


def _entries(tools: Any) -> Iterator[tuple[str, str, Tool]]:
    """Place, namespace and object of each tool, those in namespaces by themselves. Raises RequestError."""
    for place, tool in enumerate(tools if isinstance(tools, list) else ()):
        if not isinstance(tool, dict):
            refuse(f"tools.{place}", "must be an object")
        if tool.get("type") != "namespace":
            yield f"tools[{place}]", "", tool
            continue
        space = text_of(tool, f"tools.{place}", "name")
        inner = tool.get("tools")
        if not isinstance(inner, list) or not all(isinstance(one, dict) for one in inner):
            refuse(f"tools.{place}.tools", "must be a list of objects")
        for number, one in enumerate(inner):
            yield f"tools[{place}].tools[{number}]", space, one


def _function(space: str, tool: Tool) -> Tool:
    names = ("name", "description", "parameters", "strict")
    function = {name: tool[name] for name in names if tool.get(name) is not None}
    if isinstance(tool.get("name"), str):
        function["name"] = joined_name(space, tool["name"])
    return {"type": "function", "function": function}


def _allowed(functions: list[Tool], choice: Mapping[str, Any]) -> list[Tool]:
    """Those functions that the choice lists."""
    listed = choice.get("tools")
    if not isinstance(listed, list):
        refuse("tool_choice.tools", "must be a list")
    names = [
        joined_name(tool.get("namespace"), tool["name"])
        for tool in listed
        if isinstance(tool, dict) and isinstance(tool.get("name"), str)
    ]
    return [tool for tool in functions if tool["function"].get("name") in names]


def _named(choice: Mapping[str, Any]) -> Tool:
    kind = choice.get("type")
    if kind != "function":
        refuse("tool_choice.type", f"{kind!r:.40} is not offered; name a function", "unsupported")
    name = joined_name(choice.get("namespace"), text_of(choice, "tool_choice", "name"))
    return {"type": "function", "function": {"name": name}}
