"""Structured output: converts OpenAI's and vLLM's fields to one StructuredOutput. Front end.

A request may have only one of them. The schema travels as text, with its properties in the order in which they were
written.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tenonry.errors import RequestError
from tenonry.sampling_params import MAX_GRAMMAR_BYTES, MAX_START_AFTER, StructuredOutput
from tenonry_openai_server.protocol.fields import UNSUPPORTED
from tenonry_openai_server.protocol.parse import Body

MAX_CHOICES = 16_384


def _schema_text(value: Any) -> Any:
    """Return a JSON schema as text, from text or an object."""
    if isinstance(value, dict | bool):
        return msgspec.json.encode(value).decode()
    if not isinstance(value, str):
        raise ValueError("must be a JSON schema: an object, true or false, or the text of one")  # noqa: TRY004
    return value


def _few(value: Any) -> Any:
    if isinstance(value, list) and len(value) > MAX_CHOICES:
        raise ValueError(f"has {len(value)} entries; at most {MAX_CHOICES} are allowed")
    return value


Text = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR_BYTES)]
Schema = Annotated[
    Text, BeforeValidator(_schema_text, json_schema_input_type=dict[str, Any] | bool | str)
]
Choice = Annotated[list[Text], Field(min_length=1, fail_fast=True), BeforeValidator(_few)]
TokenIds = Annotated[
    list[Annotated[int, Field(ge=0, lt=2**31)]], Field(max_length=MAX_START_AFTER, fail_fast=True)
]


class JsonSchema(BaseModel):
    """`response_format.json_schema`. The schema is always enforced, also without `strict`."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    name: str | None = Field(None, max_length=256)
    description: str | None = None
    text: Schema = Field(alias="schema")
    strict: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        return {name: value for name, value in fields.items() if value is not None}


class ResponseFormat(BaseModel):
    """`response_format`, as OpenAI has it."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())
    refused_fields: ClassVar[dict[str, str]] = {
        "schema": "put it into json_schema.schema, with the type json_schema"
    }

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema belongs to the type json_schema, which needs it")
        return self


class StructuredOutputs(BaseModel):
    """`structured_outputs` as in vLLM, and the ids after which they apply."""

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())
    refused_fields: ClassVar[dict[str, str]] = {
        "structural_tag": UNSUPPORTED["structural_tag"],
        "whitespace_pattern": UNSUPPORTED["guided_whitespace_pattern"],
        "disable_any_whitespace": UNSUPPORTED["guided_whitespace_pattern"],
        "disable_additional_properties": "say additionalProperties: false in the schema",
    }

    json_text: Schema | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: Text | None = None
    choice: Choice | None = None
    grammar: Text | None = None
    start_after: TokenIds | None = Field(None, description="Applies after these ids in the answer.")


class StructuredBody(Body):
    """Structured output fields of both kinds of completions."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: Text | None = None
    guided_choice: Choice | None = None
    guided_grammar: Text | None = None

    @property
    def structured_output(self) -> StructuredOutput | None:
        """Required form of the answer. Raises RequestError for several forms together, or a value out of bounds."""
        given = self._given()
        if len(given) > 1:
            raise RequestError(
                f"{' and '.join(given)} constrain the answer; give one of them",
                "structured_outputs",
            )
        start_after = self.structured_outputs and self.structured_outputs.start_after
        if not given:
            if start_after:
                raise RequestError(
                    "structured_outputs.start_after needs one of json, json_object, regex, choice, grammar",
                    "structured_outputs",
                )
            return None
        (values,) = given.values()
        return StructuredOutput(**values, start_after=tuple(start_after or ()))

    @property
    def output_field(self) -> str | None:
        """Path of the field that requests structured output, None without one."""
        field = next(iter(self._given()), None)
        if field == "response_format" and self.response_format and self.response_format.json_schema:
            return "response_format.json_schema.schema"
        return field

    def _given(self) -> dict[str, dict[str, Any]]:
        """Value of each field that requests structured output."""
        given: dict[str, dict[str, Any]] = {}
        response = self.response_format
        if response is not None and response.json_schema is not None:
            given["response_format"] = {"json": response.json_schema.text}
        elif response is not None and response.type == "json_object":
            given["response_format"] = {"json_object": True}
        outputs = self.structured_outputs
        forms: dict[str, Any] = {
            "guided_json": self.guided_json,
            "guided_regex": self.guided_regex,
            "guided_choice": self.guided_choice,
            "guided_grammar": self.guided_grammar,
        }
        if outputs is not None:
            forms |= {
                "structured_outputs.json": outputs.json_text,
                "structured_outputs.json_object": outputs.json_object or None,
                "structured_outputs.regex": outputs.regex,
                "structured_outputs.choice": outputs.choice,
                "structured_outputs.grammar": outputs.grammar,
            }
        for name, value in forms.items():
            if value is not None:
                form = name.removeprefix("guided_").removeprefix("structured_outputs.")
                given[name] = {form: tuple(value) if isinstance(value, list) else value}
        return given
