"""Tools of a chat request, and its choice of tools. Front end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from tenonry_openai_server.protocol.fields import nearest_field
from tenonry_output_parsers.base import Tool

MAX_TOOLS = 128
MAX_DESCRIPTION = 64 << 10
MAX_DEPTH = 32  # of a schema: templates and grammars walk through it
MAX_KIND_CHARS = 64
NAME = r"^[a-zA-Z0-9_.:/-]{1,128}$"

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ToolFunction(BaseModel):
    """A function that the model may call."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: str = Field(pattern=NAME)
    description: str | None = Field(None, max_length=MAX_DESCRIPTION)
    parameters: dict[str, Any] | None = Field(None, description="A JSON schema of an object.")
    strict: bool | None = None

    def for_template(self) -> dict[str, Any]:
        """The function as a tool in the form of chat templates."""
        return {"type": "function", "function": self.model_dump(exclude_none=True)}

    def for_parser(self) -> Tool:
        """The function in the form of output parsers."""
        return Tool(self.name, self.parameters or {}, bool(self.strict))


class ToolBody(BaseModel):
    """One entry of `tools`. Only functions are served; other fields of tools of other types belong to their vendor."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: str = Field("function", max_length=MAX_KIND_CHARS)
    function: ToolFunction | None = None

    @field_validator("type", mode="before")
    @classmethod
    def _function_by_default(cls, kind: Any) -> Any:
        return "function" if kind is None else kind

    @model_validator(mode="after")
    def _check(self) -> ToolBody:
        if self.type != "function" and nearest_field(self.type, ["function"]):
            raise ValueError(f"type '{self.type}' is unknown; did you mean function?")
        if self.type == "function" and self.function is None:
            raise ValueError("function is missing")
        return self

    @property
    def served(self) -> ToolFunction | None:
        """Return the function, unless it is a tool of another type."""
        return self.function if self.type == "function" else None


class NamedFunction(BaseModel):
    """The name of one of the tools."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: str = Field(max_length=128)


class NamedChoice(BaseModel):
    """The one function that must be called."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["function"]
    function: NamedFunction


class AllowedTools(BaseModel):
    """Some of the functions; calling one may be required."""

    model_config = ConfigDict(strict=True, extra="ignore")

    mode: Literal["auto", "required"]
    tools: list[NamedChoice] = Field(min_length=1, max_length=MAX_TOOLS)


class AllowedChoice(BaseModel):
    """The choice among some of the functions."""

    model_config = ConfigDict(strict=True, extra="ignore")

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools

    @property
    def names(self) -> list[str]:
        return [tool.function.name for tool in self.allowed_tools.tools]


Tools = list[ToolBody]
ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedChoice | AllowedChoice,
    Field(description="none, auto, required, one function by name, or some as allowed_tools."),
]


def check_names(tools: Sequence[ToolFunction]) -> None:
    """Raises ValueError for two tools of one name, and for a schema that is nested too deeply."""
    seen: set[str] = set()
    for tool in tools:
        name = tool.name
        if name in seen:
            raise ValueError(f"tools has two functions named '{name}'; give each a name of its own")
        seen.add(name)
        if depth(tool.parameters, 0) > MAX_DEPTH:
            raise ValueError(
                f"tools: the parameters of '{name}' are nested more than {MAX_DEPTH} levels deep"
            )


def depth(value: Any, above: int) -> int:
    """Levels of nesting; counting ends above the bound."""
    if above > MAX_DEPTH or not isinstance(value, dict | list):
        return above
    entries = value.values() if isinstance(value, dict) else value
    return max((depth(entry, above + 1) for entry in entries), default=above + 1)


def check_choice(
    choice: str | NamedChoice | AllowedChoice | None, tools: Sequence[ToolFunction]
) -> None:
    """Raise ValueError for a choice that none of the tools can fulfil."""
    names = [tool.name for tool in tools]
    chosen: list[str] = []
    if isinstance(choice, NamedChoice):
        chosen = [choice.function.name]
    elif isinstance(choice, AllowedChoice):
        chosen = choice.names
    if missing := [name for name in chosen if name not in names]:
        offered = ", ".join(names) or "none"
        raise ValueError(
            f"tool_choice names '{missing[0]}'; the tools of this request are: {offered}"
        )
    if choice == "required" and not tools:
        raise ValueError(
            "tool_choice=required needs tools to choose from, and functions among them"
        )
