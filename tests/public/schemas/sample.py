"""Typical schemas, written for these tests, each with a value that satisfies it.

Manifests, CI configurations, fragments of OpenAPI documents, tools as MCP servers publish them, strict structured
outputs, and what pydantic and zod write.
"""

from __future__ import annotations

from typing import Any, NamedTuple

DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2020 = "https://json-schema.org/draft/2020-12/schema"
VERSION = r"^v?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?$"
TEXTS = {"type": "array", "items": {"type": "string"}}
OPTIONAL_TEXT = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Text"}


class Sample(NamedTuple):
    """`value` has the properties in the order of the schema, as a grammar writes them."""

    schema: dict[str, Any]
    value: Any


def strict(**properties: Any) -> dict[str, Any]:
    """An object for strict structured outputs: all properties required, no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SAMPLES = {
    "decimal number of pydantic": Sample(
        {
            "type": "object", "required": ["price"],
            "properties": {
                "price": {
                    "anyOf": [
                        {"type": "number"},
                        {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"},
                    ],
                },
            },
        },
        {"price": "-12.50"},
    ),
    "password": Sample(
        {"type": "string", "pattern": r"^(?=.*[A-Z])(?=.*\d)[A-Za-z\d]{8,12}$"}, "abcdefG1"
    ),
    "package manifest": Sample(
        {
            "$schema": DRAFT_7, "title": "Manifest", "type": "object", "required": ["name", "version"],
            "properties": {
                "name": {"type": "string", "maxLength": 24, "pattern": "^(@[a-z0-9-]+/)?[a-z0-9-][a-z0-9._-]*$"},
                "version": {"type": "string", "pattern": VERSION},
                "private": {"type": "boolean", "default": False},
                "license": {"anyOf": [{"type": "string"}, {"enum": ["MIT", "Apache-2.0"]}]},
                "bin": {"oneOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}]},
                "dependencies": {"$ref": "#/definitions/dependencies"},
                "devDependencies": {"$ref": "#/definitions/dependencies"},
                "engines": {"type": "object", "properties": {"node": {"type": "string"}}},
            },
            "patternProperties": {"^_": {"description": "kept by tools"}},
            "additionalProperties": False,
            "definitions": {"dependencies": {"type": "object", "additionalProperties": {"type": "string"}}},
        },
        {"name": "left-pad", "version": "1.3.0", "bin": {"pad": "bin/pad.js"}, "dependencies": {"a": "^1.0.0"}},
    ),
    "build manifest with conditions": Sample(
        {
            "type": "object",
            "properties": {
                "kind": {"enum": ["binary", "library"]},
                "entry": {"type": "string", "minLength": 1},
                "exports": {**TEXTS, "minItems": 1},
            },
            "required": ["kind"],
            "if": {"properties": {"kind": {"const": "binary"}}},
            "then": {"required": ["entry"]},
            "else": {"required": ["exports"]},
            "additionalProperties": False,
        },
        {"kind": "library", "exports": ["index"]},
    ),
    "pipeline": Sample(
        {
            "$schema": DRAFT_7, "type": "object", "required": ["on", "jobs"], "additionalProperties": False,
            "properties": {
                "name": {"type": "string"},
                "on": {
                    "oneOf": [
                        {"$ref": "#/definitions/event"},
                        {"type": "array", "items": {"$ref": "#/definitions/event"}, "minItems": 1, "maxItems": 3},
                        {"type": "object", "propertyNames": {"enum": ["push", "schedule"]},
                         "additionalProperties": {"type": ["object", "null"]}},
                    ],
                },
                "jobs": {
                    "type": "object",
                    "patternProperties": {"^[_a-zA-Z][a-zA-Z0-9_-]*$": {"$ref": "#/definitions/job"}},
                    "additionalProperties": False, "minProperties": 1,
                },
            },
            "definitions": {
                "event": {"type": "string", "enum": ["push", "pull_request", "schedule"]},
                "job": {
                    "type": "object", "required": ["runs-on"],
                    "properties": {
                        "runs-on": {"anyOf": [{"type": "string"}, TEXTS]},
                        "timeout-minutes": {"type": "number", "exclusiveMinimum": 0, "maximum": 360},
                        "steps": {"type": "array", "items": {"$ref": "#/definitions/step"}},
                    },
                    "additionalProperties": False,
                },
                "step": {
                    "type": "object", "oneOf": [{"required": ["run"]}, {"required": ["uses"]}],
                    "properties": {
                        "name": {"type": "string"}, "run": {"type": "string"}, "uses": {"type": "string"},
                        "env": {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
                    },
                    "additionalProperties": False,
                },
            },
        },
        {"on": ["push"], "jobs": {"test": {"runs-on": "linux", "steps": [{"name": "t", "run": "make"}]}}},
    ),
    "services": Sample(
        {
            "$schema": DRAFT_7, "type": "object", "additionalProperties": False, "required": ["services"],
            "properties": {
                "services": {"type": "object", "patternProperties": {"^[a-zA-Z0-9._-]+$": {"$ref": "#/definitions/s"}},
                             "additionalProperties": False},
            },
            "patternProperties": {"^x-": {}},
            "definitions": {
                "s": {
                    "type": "object", "properties": {
                        "image": {"type": "string"},
                        "ports": {"type": "array", "items": {"oneOf": [
                            {"type": "integer", "minimum": 1, "maximum": 65535},
                            {"type": "string", "pattern": "^[0-9]{1,5}:[0-9]{1,5}$"},
                        ]}},
                        "depends_on": {"oneOf": [TEXTS, {"type": "object"}]},
                        "restart": {"type": "string", "pattern": "^(no|always|on-failure(:[0-9]+)?)$"},
                    },
                    "required": ["image"], "additionalProperties": False,
                },
            },
        },
        {"services": {"db": {"image": "postgres", "ports": ["5432:5432", 80], "restart": "always"}}},
    ),
    "editor settings": Sample(
        {
            "type": "object", "additionalProperties": False, "allowComments": True,
            "properties": {
                "tab.size": {"type": "integer", "default": 4, "minimum": 1, "markdownDescription": "`n` columns",
                             "scope": "resource", "order": 1},
                "wrap": {"type": "string", "enum": ["off", "on"], "enumDescriptions": ["no", "yes"],
                         "enumItemLabels": ["Off", "On"], "deprecationMessage": "use `flow`"},
                "exclude": {"type": "object", "additionalProperties": {"anyOf": [
                    {"type": "boolean"},
                    {"type": "object", "properties": {"when": {"type": "string", "default": "$(basename).ext"}}},
                ]}},
            },
        },
        {"tab.size": 2, "wrap": "off", "exclude": {"**/.git": True}},
    ),
    "log rules": Sample(
        {
            "$schema": DRAFT_4, "id": "http://example.com/log", "type": "array", "maxItems": 4,
            "items": {
                "type": "object", "required": ["level"],
                "properties": {
                    "level": {"type": "string", "enum": ["debug", "info", "error"]},
                    "sample": {"type": "number", "minimum": 0, "maximum": 1, "exclusiveMinimum": True},
                    "file": {"type": "string"}, "max": {"type": "integer", "minimum": 1},
                },
                "dependencies": {"max": ["file"]}, "additionalProperties": False,
            },
        },
        [{"level": "info", "sample": 0.5}, {"level": "error", "file": "a.log", "max": 3}],
    ),
    "event with its own schema": Sample(
        {
            "description": "page view", "self": {"vendor": "com.example", "name": "view", "version": "1-0-0"},
            "type": "object",
            "properties": {
                "id": {"type": "string", "format": "uuid"}, "seen": {"type": "string", "format": "date-time"},
                "path": {"type": ["string", "null"], "maxLength": 255},
                "scroll": {"type": ["integer", "null"], "minimum": 0, "maximum": 2147483647},
            },
            "required": ["id", "seen"], "additionalProperties": False,
        },
        {"id": "2eb8aa08-aa98-41ea-b4aa-73b441d16380", "seen": "2024-02-29T12:00:00Z", "scroll": 3},
    ),
    "cluster object": Sample(
        {
            "type": "object", "x-kubernetes-group-version-kind": [{"group": "apps", "kind": "Deployment"}],
            "properties": {
                "apiVersion": {"type": ["string", "null"], "enum": ["apps/v1"]},
                "kind": {"type": ["string", "null"], "enum": ["Deployment"]},
                "metadata": {"type": "object", "properties": {
                    "name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63},
                    "labels": {"type": ["object", "null"], "additionalProperties": {"type": ["string", "null"]}},
                }},
                "port": {"x-kubernetes-int-or-string": True, "oneOf": [{"type": "string"}, {"type": "integer"}]},
            },
            "required": ["kind"],
        },
        {"kind": "Deployment", "metadata": {"name": "web", "labels": {"app": "web"}}, "port": "http"},
    ),
    "openapi pet": Sample(
        {
            "$ref": "#/components/schemas/Pet",
            "components": {"schemas": {
                "Pet": {
                    "type": "object", "required": ["id", "kind"], "xml": {"name": "pet"},
                    "properties": {
                        "id": {"type": "integer", "format": "int64", "example": 10},
                        "kind": {"type": "string", "enum": ["cat", "dog"]},
                        "tag": {"$ref": "#/components/schemas/Tag"},
                        "photos": {**TEXTS, "xml": {"wrapped": True}},
                        "born": {"type": "string", "format": "date", "nullable": True},
                    },
                },
                "Tag": {"type": "object", "properties": {"name": {"type": "string"}}, "additionalProperties": False},
            }},
        },
        {"id": 1, "kind": "cat", "tag": {"name": "a"}, "photos": [], "born": "2020-01-31"},
    ),
    "openapi payment": Sample(
        {
            "allOf": [
                {"$ref": "#/$defs/Base"},
                {"type": "object", "required": ["card"], "properties": {"card": {"$ref": "#/$defs/Card"}}},
            ],
            "$defs": {
                "Base": {"type": "object", "required": ["amount"], "properties": {
                    "amount": {"type": "number", "minimum": 0, "multipleOf": 0.01},
                    "currency": {"type": "string", "pattern": "^[A-Z]{3}$"},
                }},
                "Card": {"type": "object", "required": ["number"], "additionalProperties": False, "properties": {
                    "number": {"type": "string", "pattern": "^[0-9]{13,19}$"},
                    "expiry": {"type": "string", "pattern": "^(0[1-9]|1[0-2])/[0-9]{2}$"},
                }},
            },
        },
        {"amount": 12.5, "currency": "EUR", "card": {"number": "4111111111111111"}},
    ),
    "problem details": Sample(
        {
            "type": "object",
            "properties": {
                "type": {"type": "string", "format": "uri-reference"}, "title": {"type": "string"},
                "status": {"type": "integer", "minimum": 100, "maximum": 599},
            },
            "additionalProperties": True,
        },
        {"type": "/errors/quota", "title": "Quota", "status": 429, "balance": 30},
    ),
    "mcp file reader": Sample(
        {
            "type": "object",
            "properties": {
                "path": {"type": "string", "description": "Path of the file"},
                "head": {"type": "number", "description": "First lines only"},
                "encoding": {"type": "string", "enum": ["utf-8", "base64"], "default": "utf-8"},
            },
            "required": ["path"], "additionalProperties": False, "$schema": DRAFT_7,
        },
        {"path": "/tmp/a", "head": 10},
    ),
    "mcp issue search": Sample(
        {
            "type": "object", "title": "search_issuesArguments",
            "properties": {
                "query": {"title": "Query", "type": "string"},
                "labels": {"title": "Labels", "anyOf": [TEXTS, {"type": "null"}], "default": None},
                "limit": {"title": "Limit", "type": "integer", "default": 20, "minimum": 1, "maximum": 100},
                "since": {**OPTIONAL_TEXT, "title": "Since"},
            },
            "required": ["query"],
        },
        {"query": "bug", "labels": None, "limit": 5, "since": "2024"},
    ),
    "mcp edits": Sample(
        {
            "type": "object", "properties": {
                "edits": {"type": "array", "minItems": 1, "items": {
                    "type": "object", "properties": {
                        "oldText": {"type": "string", "description": "must match exactly"},
                        "newText": {"type": "string"},
                    }, "required": ["oldText", "newText"], "additionalProperties": False,
                }},
                "dryRun": {"type": "boolean", "default": False},
            },
            "required": ["edits"], "additionalProperties": False, "$schema": DRAFT_7,
        },
        {"edits": [{"oldText": "a", "newText": "b"}], "dryRun": True},
    ),
    "mcp thinking step": Sample(
        {
            "type": "object", "properties": {
                "thought": {"type": "string"}, "nextThoughtNeeded": {"type": "boolean"},
                "thoughtNumber": {"type": "integer", "minimum": 1}, "branchId": {"type": "string"},
            },
            "required": ["thought", "nextThoughtNeeded", "thoughtNumber"],
        },
        {"thought": "so", "nextThoughtNeeded": False, "thoughtNumber": 2},
    ),
    "mcp query without arguments": Sample({"type": "object", "properties": {}, "$schema": DRAFT_2020}, {}),
    "strict extraction": Sample(
        strict(
            name={"type": "string"}, date={"type": "string", "description": "ISO"},
            people={"type": "array", "items": strict(name={"type": "string"}, role={"type": ["string", "null"]})},
        ),
        {"name": "Fair", "date": "today", "people": [{"name": "A", "role": None}]},
    ),
    "strict steps": Sample(
        strict(
            steps={"type": "array", "items": strict(explanation={"type": "string"}, output={"type": "string"})},
            final_answer={"type": "string"},
        ),
        {"steps": [{"explanation": "e", "output": "o"}], "final_answer": "4"},
    ),
    "strict list that leads to itself": Sample(
        {**strict(head={"$ref": "#/$defs/node"}), "$defs": {
            "node": strict(value={"type": "number"}, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}),
        }},
        {"head": {"value": 1, "next": {"value": 2.5, "next": None}}},
    ),
    "strict interface": Sample(
        {**strict(
            type={"type": "string", "enum": ["div", "button"]}, label={"type": "string"},
            children={"type": "array", "items": {"$ref": "#"}},
            attributes={"type": "array", "items": strict(name={"type": "string"}, value={"type": "string"})},
        ), "$schema": DRAFT_2020},
        {"type": "div", "label": "", "children": [
            {"type": "button", "label": "x", "children": [], "attributes": []},
        ], "attributes": [{"name": "a", "value": "b"}]},
    ),
    "strict moderation": Sample(
        strict(
            is_violating={"type": "boolean"},
            category={"type": ["string", "null"], "enum": ["violence", "self_harm", None]},
            score={"type": "number", "minimum": 0, "maximum": 1},
        ),
        {"is_violating": True, "category": None, "score": 0.25},
    ),
    "pydantic union": Sample(
        {
            "$defs": {
                "Cat": {"properties": {"kind": {"const": "cat", "title": "Kind", "type": "string"},
                                       "lives": {"default": 9, "title": "Lives", "type": "integer"}},
                        "required": ["kind"], "title": "Cat", "type": "object"},
                "Dog": {"properties": {"kind": {"const": "dog", "title": "Kind", "type": "string"},
                                       "good": {"title": "Good", "type": "boolean"}},
                        "required": ["kind", "good"], "title": "Dog", "type": "object"},
            },
            "properties": {
                "pet": {"discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"},
                                          "propertyName": "kind"},
                        "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}], "title": "Pet"},
                "names": {"maxItems": 2, "minItems": 2, "prefixItems": [{"type": "string"}, {"type": "integer"}],
                          "title": "Names", "type": "array"},
            },
            "required": ["pet"], "title": "Owner", "type": "object",
        },
        {"pet": {"kind": "dog", "good": True}, "names": ["a", 1]},
    ),
    "zod union": Sample(
        {
            "$schema": DRAFT_7, "type": "object", "required": ["shape"], "additionalProperties": False,
            "properties": {"shape": {"anyOf": [
                {"type": "object", "properties": {"t": {"type": "string", "const": "circle"},
                                                  "r": {"type": "number", "exclusiveMinimum": 0}},
                 "required": ["t", "r"], "additionalProperties": False},
                {"type": "object", "properties": {"t": {"type": "string", "const": "box"},
                                                  "w": {"type": "number"}, "h": {"type": "number"}},
                 "required": ["t", "w", "h"], "additionalProperties": False},
            ]}},
        },
        {"shape": {"t": "box", "w": 1, "h": 2.5}},
    ),
    "geometry": Sample(
        {
            "$schema": DRAFT_7, "oneOf": [
                {"type": "object", "required": ["type", "coordinates"], "properties": {
                    "type": {"type": "string", "enum": ["Point"]},
                    "coordinates": {"$ref": "#/definitions/position"}}},
                {"type": "object", "required": ["type", "coordinates"], "properties": {
                    "type": {"type": "string", "enum": ["LineString"]},
                    "coordinates": {"type": "array", "minItems": 2, "items": {"$ref": "#/definitions/position"}}}},
            ],
            "definitions": {"position": {"type": "array", "minItems": 2, "items": {"type": "number"}}},
        },
        {"type": "LineString", "coordinates": [[0, 1.5], [2, 3, 4]]},
    ),
    "patch operations": Sample(
        {
            "type": "array", "items": {"oneOf": [
                {"properties": {"op": {"enum": ["add", "replace"]}, "path": {"$ref": "#/$defs/path"}, "value": {}},
                 "required": ["op", "path", "value"], "type": "object"},
                {"properties": {"op": {"enum": ["remove"]}, "path": {"$ref": "#/$defs/path"}},
                 "required": ["op", "path"], "type": "object"},
                {"properties": {"op": {"enum": ["move", "copy"]}, "path": {"$ref": "#/$defs/path"},
                                "from": {"$ref": "#/$defs/path"}},
                 "required": ["op", "path", "from"], "type": "object"},
            ]},
            "$defs": {"path": {"type": "string", "format": "json-pointer"}},
        },
        [{"op": "remove", "path": "/a"}, {"op": "copy", "path": "/a", "from": "/b/0"}],
    ),
    "message of a remote call": Sample(
        {
            "type": "object", "required": ["jsonrpc"],
            "properties": {
                "jsonrpc": {"const": "2.0"}, "id": {"type": ["string", "integer", "null"]},
                "result": {}, "error": {"type": "object", "required": ["code"], "properties": {
                    "code": {"type": "integer"}, "message": {"type": "string"}}},
            },
            "oneOf": [{"required": ["result"]}, {"required": ["error"]}], "additionalProperties": False,
        },
        {"jsonrpc": "2.0", "id": 1, "result": [1, {"a": None}]},
    ),
    "expression": Sample(
        {
            "$defs": {"expr": {"anyOf": [
                {"type": "number"},
                {"type": "object", "additionalProperties": False, "required": ["op", "args"], "properties": {
                    "op": {"enum": ["+", "*"]},
                    "args": {"type": "array", "items": {"$ref": "#/$defs/expr"}, "minItems": 2, "maxItems": 2}}},
            ]}},
            "$ref": "#/$defs/expr",
        },
        {"op": "+", "args": [1, {"op": "*", "args": [2, 3]}]},
    ),
    "closed composition": Sample(
        {
            "$schema": DRAFT_2020, "$defs": {"named": {"properties": {"name": {"type": "string"}}}},
            "type": "object", "allOf": [{"$ref": "#/$defs/named"}], "properties": {"size": {"type": "integer"}},
            "required": ["name"], "unevaluatedProperties": False,
        },
        {"size": 3, "name": "a"},
    ),
    "palette": Sample(
        {
            "type": "object", "propertyNames": {"pattern": "^[a-z][a-z0-9-]*$"}, "maxProperties": 3,
            "additionalProperties": {"type": "string", "pattern": "^#([0-9a-f]{3}|[0-9a-f]{6})$"},
        },
        {"red": "#f00", "sky-2": "#87ceeb"},
    ),
    "permissions": Sample(
        {
            "type": "object", "minProperties": 1, "additionalProperties": False,
            "properties": {name: {"enum": ["read", "write"]} for name in ("contents", "issues", "packages")},
        },
        {"issues": "write"},
    ),
    "choice without repetition": Sample(
        {"type": "array", "items": {"enum": ["x", "y", "z"]}, "uniqueItems": True, "minItems": 1}, ["z", "x"]
    ),
    "everything but": Sample(
        {"type": "object", "properties": {"user": {"type": "string", "not": {"enum": ["root", "admin"]}},
                                          "port": {"type": "integer", "not": {"minimum": 1, "maximum": 1023}}}},
        {"user": "rooty", "port": 8080},
    ),
}  # fmt: skip
