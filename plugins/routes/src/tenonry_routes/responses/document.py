"""JSON schema in /openapi.json of the body of POST /v1/responses. Data."""

from __future__ import annotations

from typing import Any

from tenonry_routes.responses.items import CLIENT_CALLS, MAX_ITEMS, TEXT_PARTS
from tenonry_routes.responses.request import HARMLESS, PASSED

CHAT = "#/components/schemas/ChatRequest/properties/"
TEXT = {"type": "string"}
PART = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"type": {"enum": sorted(TEXT_PARTS)}, "text": TEXT},
            "required": ["type", "text"],
        },
        {
            "type": "object",
            "properties": {"type": {"const": "refusal"}, "refusal": TEXT},
            "required": ["type", "refusal"],
        },
        {
            "type": "object",
            "properties": {
                "type": {"const": "input_image"},
                "image_url": TEXT,
                "file_id": {"type": "null"},
                "detail": {"enum": ["auto", "low", "high", "original", None]},
            },
            "required": ["type", "image_url"],
        },
    ]
}
CONTENT = {"anyOf": [TEXT, {"type": "array", "items": PART}]}
ITEM: dict[str, Any] = {
    "anyOf": [
        {
            "type": "object",
            "properties": {
                "type": {"enum": ["message", None]},
                "role": {"enum": ["user", "assistant", "system", "developer"]},
                "content": CONTENT,
            },
            "required": ["role", "content"],
        },
        {
            "type": "object",
            "properties": {
                "type": {"const": "function_call"},
                "call_id": {"type": "string", "maxLength": 256},
                "name": {"type": "string", "maxLength": 256},
                "arguments": TEXT,
            },
            "required": ["type", "call_id", "name", "arguments"],
        },
        {
            "type": "object",
            "properties": {
                "type": {"const": "function_call_output"},
                "call_id": {"type": "string", "maxLength": 256},
                "output": CONTENT,
            },
            "required": ["type", "call_id", "output"],
        },
        {
            "type": "object",
            "properties": {
                "type": {"const": "reasoning"},
                "content": {
                    "type": ["array", "null"],
                    "items": {"type": "object", "properties": {"text": TEXT}, "required": ["text"]},
                },
            },
            "required": ["type"],
        },
    ]
}
ITEM["anyOf"] += [
    {
        "type": "object",
        "description": description,
        "properties": {"type": {"enum": kinds}},
        "required": ["type"],
    }
    for kinds, description in (
        (sorted(CLIENT_CALLS), "Shown to the model as the call of a function."),
        ([f"{kind}_output" for kind in sorted(CLIENT_CALLS)], "Shown as the result of that call."),
        (["mcp_call"], "Shown as the call of a function and its result."),
    )
]
ITEM["anyOf"].append(
    {
        "type": "object",
        "description": "Any other type: left out and named in x-tenonry-ignored.",
        "properties": {"type": TEXT},
        "required": ["type"],
    }
)
FUNCTION = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "name": {"$ref": "#/components/schemas/ToolFunction/properties/name"},
        "description": {"$ref": "#/components/schemas/ToolFunction/properties/description"},
        "parameters": {"type": ["object", "null"]},
        "strict": {"type": ["boolean", "null"]},
    },
    "required": ["type", "name"],
}
TOOL = {
    "anyOf": [
        FUNCTION,
        {
            "type": "object",
            "description": "Functions that the model knows by joined names.",
            "properties": {
                "type": {"const": "namespace"},
                "name": TEXT,
                "description": TEXT,
                "tools": {"type": "array", "items": {"type": "object"}},
            },
            "required": ["type", "name", "tools"],
        },
        {
            "type": "object",
            "description": "Any other type: left out and named in x-tenonry-ignored.",
            "properties": {"type": TEXT},
            "required": ["type"],
        },
    ]
}
ALLOWED_TOOLS = {
    "type": "object",
    "properties": {
        "type": {"const": "allowed_tools"},
        "mode": {"enum": ["auto", "required"]},
        "tools": {"type": "array", "items": {"type": "object"}},
    },
    "required": ["type", "tools"],
}
NAMED_TOOL = {
    "type": "object",
    "properties": {"type": {"const": "function"}, "name": TEXT},
    "required": ["type", "name"],
}
FORMAT = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"type": {"enum": ["text", "json_object"]}},
            "required": ["type"],
        },
        {
            "type": "object",
            "properties": {
                "type": {"const": "json_schema"},
                "name": {"type": ["string", "null"], "maxLength": 256},
                "description": {"type": ["string", "null"]},
                "schema": {"type": "object"},
                "strict": {"type": ["boolean", "null"]},
            },
            "required": ["type", "schema"],
        },
        {"type": "null"},
    ]
}
PROPERTIES: dict[str, Any] = {
    **{name: {"description": "Changes no answer here."} for name in sorted(HARMLESS)},
    **{name: {"$ref": CHAT + name} for name in PASSED},
    "stream": {"type": ["boolean", "null"]},
    "stream_options": {"type": ["object", "null"]},
    "include": {"type": ["array", "null"], "items": TEXT},
    "top_logprobs": {"$ref": CHAT + "top_logprobs"},
    "input": {
        "anyOf": [TEXT, {"type": "array", "items": ITEM, "minItems": 1, "maxItems": MAX_ITEMS}]
    },
    "instructions": {"type": ["string", "null"]},
    "max_output_tokens": {"$ref": CHAT + "max_tokens"},
    "tools": {"type": ["array", "null"], "items": TOOL, "maxItems": 128},
    "tool_choice": {
        "anyOf": [{"enum": ["none", "auto", "required", None]}, NAMED_TOOL, ALLOWED_TOOLS]
    },
    "reasoning": {
        "type": ["object", "null"],
        "properties": {"effort": {"$ref": CHAT + "reasoning_effort"}},
    },
    "text": {"type": ["object", "null"], "properties": {"format": FORMAT}},
    "truncation": {"enum": ["disabled", "auto", None]},
}
BODY: dict[str, Any] = {"type": "object", "properties": PROPERTIES, "required": ["input"]}
