"""The points that the server opens: routes of third parties, and parsers of answers. Any process; imports no server."""

from __future__ import annotations

from tenonry.plugin import Point

# A name refers to a function of a RouteContext that returns an ASGI application.
ROUTES = Point(
    "tenonry.routes",
    None,
    {
        **dict.fromkeys(("messages", "pooling", "responses"), "tenonry-routes"),
        "page": "tenonry-route-page",
        "tenant-limits": "tenonry-route-tenant-limits",
    },
)

FIRST_PARTY_PARSERS = (
    "think",
    "mistral-think",
    "seed-think",
    "hermes",
    "qwen-coder",
    "glm",
    "llama",
    "mistral",
    "deepseek",
    "harmony",
)
OUTPUT_PARSERS = Point(
    "tenonry.output_parsers",
    "tenonry_output_parsers.base:OutputParser",
    dict.fromkeys(FIRST_PARTY_PARSERS, "tenonry-output-parsers"),
)
