"""Types of requests and responses: pydantic at the edge, msgspec on the way out. Front end."""

from __future__ import annotations
