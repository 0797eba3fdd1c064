"""JSON schemas in /openapi.json of the bodies of POST /v1/messages and /v1/messages/count_tokens. Data."""

from __future__ import annotations

from typing import Any

from tenonry_routes.messages.blocks import FOREIGN, MAX_BLOCKS, MEDIA_TYPE
from tenonry_routes.messages.request import EFFORT, HARMLESS, PASSED

CHAT = "#/components/schemas/ChatRequest/properties/"
TEXT = {"type": "string"}
TEXT_BLOCK = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": TEXT},
    "required": ["type", "text"],
}
SOURCE = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"type": {"const": "url"}, "url": TEXT},
            "required": ["type", "url"],
        },
        {
            "type": "object",
            "properties": {
                "type": {"const": "base64"},
                "media_type": {"type": "string", "pattern": f"^{MEDIA_TYPE.pattern}$"},
                "data": TEXT,
            },
            "required": ["type", "media_type", "data"],
        },
    ]
}
IMAGE_BLOCK = {
    "type": "object",
    "properties": {"type": {"const": "image"}, "source": SOURCE},
    "required": ["type", "source"],
}
DOCUMENT_BLOCK = {
    "type": "object",
    "description": "Of plain texts and content blocks; files are left out and named in x-tenonry-ignored.",
    "properties": {
        "type": {"const": "document"},
        "source": {
            "type": "object",
            "properties": {"type": {"enum": ["text", "content", "base64", "url", "file"]}},
            "required": ["type"],
        },
        "title": {"type": ["string", "null"]},
        "context": {"type": ["string", "null"]},
    },
    "required": ["type", "source"],
}
SEARCH_BLOCK = {
    "type": "object",
    "properties": {
        "type": {"const": "search_result"},
        "source": TEXT,
        "title": TEXT,
        "content": {"type": "array", "items": TEXT_BLOCK},
    },
    "required": ["type", "source", "title", "content"],
}
REFERENCE_BLOCK = {
    "type": "object",
    "properties": {"type": {"const": "tool_reference"}, "tool_name": TEXT},
    "required": ["type", "tool_name"],
}
FOREIGN_BLOCK = {
    "type": "object",
    "description": "Left out and named in x-tenonry-ignored.",
    "properties": {"type": {"enum": sorted(FOREIGN)}},
    "required": ["type"],
}
RESULT_BLOCK = {
    "type": "object",
    "properties": {
        "type": {"const": "tool_result"},
        "tool_use_id": {"type": "string", "maxLength": 256},
        "content": {
            "anyOf": [
                TEXT,
                {
                    "type": "array",
                    "items": {
                        "anyOf": [
                            TEXT_BLOCK,
                            IMAGE_BLOCK,
                            DOCUMENT_BLOCK,
                            SEARCH_BLOCK,
                            REFERENCE_BLOCK,
                        ]
                    },
                },
                {"type": "null"},
            ]
        },
    },
    "required": ["type", "tool_use_id"],
}
CALL_BLOCK = {
    "type": "object",
    "properties": {
        "type": {"const": "tool_use"},
        "id": {"type": "string", "maxLength": 256},
        "name": {"type": "string", "maxLength": 256},
        "input": {"type": ["object", "null"]},
    },
    "required": ["type", "id", "name"],
}
THINKING_BLOCK = {
    "type": "object",
    "properties": {"type": {"const": "thinking"}, "thinking": TEXT},
    "required": ["type", "thinking"],
}


def _message(role: str, *blocks: dict[str, Any]) -> dict[str, Any]:
    """A message whose content is a text or blocks of these kinds."""
    listed = {"type": "array", "items": {"anyOf": list(blocks)}, "maxItems": MAX_BLOCKS}
    return {
        "type": "object",
        "properties": {"role": {"const": role}, "content": {"anyOf": [TEXT, listed]}},
        "required": ["role", "content"],
    }


SYSTEM = {"anyOf": [TEXT, {"type": "array", "items": TEXT_BLOCK}, {"type": "null"}]}
MESSAGE = {
    "anyOf": [
        _message(
            "user",
            TEXT_BLOCK,
            IMAGE_BLOCK,
            DOCUMENT_BLOCK,
            SEARCH_BLOCK,
            RESULT_BLOCK,
            FOREIGN_BLOCK,
        ),
        _message("assistant", TEXT_BLOCK, THINKING_BLOCK, CALL_BLOCK, FOREIGN_BLOCK),
        _message("system", TEXT_BLOCK),
    ]
}
TOOL = {
    "type": "object",
    "properties": {
        "type": {
            "type": ["string", "null"],
            "description": "custom; tools of other types are left out and named in x-tenonry-ignored.",
        },
        "name": {"$ref": "#/components/schemas/ToolFunction/properties/name"},
        "description": {"$ref": "#/components/schemas/ToolFunction/properties/description"},
        "input_schema": {"type": ["object", "null"]},
        "strict": {"type": ["boolean", "null"]},
    },
    "required": ["name"],
}
CHOICE = {
    "anyOf": [
        {
            "type": "object",
            "properties": {
                "type": {"enum": ["auto", "any", "none"]},
                "disable_parallel_tool_use": {"type": ["boolean", "null"]},
            },
            "required": ["type"],
        },
        {
            "type": "object",
            "properties": {"type": {"const": "tool"}, "name": TEXT},
            "required": ["type", "name"],
        },
        {"type": "null"},
    ]
}
THINKING = {
    "type": ["object", "null"],
    "properties": {
        "type": {"enum": ["enabled", "disabled", "adaptive"]},
        "display": {"enum": ["summarized", "omitted", None]},
    },
    "required": ["type"],
}
FORMAT = {
    "type": ["object", "null"],
    "properties": {"type": {"const": "json_schema"}, "schema": {"type": "object"}},
    "required": ["type", "schema"],
}
PROPERTIES: dict[str, Any] = {
    **{name: {"description": "Changes no answer here."} for name in sorted(HARMLESS)},
    **{name: {"$ref": CHAT + name} for name in PASSED},
    "model": TEXT,
    "messages": {"type": "array", "items": MESSAGE, "minItems": 1},
    "max_tokens": {"$ref": CHAT + "max_tokens"},
    "system": SYSTEM,
    "stop_sequences": {"$ref": CHAT + "stop"},
    "tools": {"type": ["array", "null"], "items": TOOL, "maxItems": 128},
    "tool_choice": CHOICE,
    "thinking": {"anyOf": [THINKING, {"type": "null"}]},
    "output_format": FORMAT,
    "output_config": {
        "type": ["object", "null"],
        "properties": {"effort": {"enum": [*sorted(EFFORT), None]}, "format": FORMAT},
    },
}
COUNTED: dict[str, Any] = {
    "type": "object",
    "properties": PROPERTIES,
    "required": ["model", "messages"],
}
BODY: dict[str, Any] = {**COUNTED, "required": ["model", "messages", "max_tokens"]}
