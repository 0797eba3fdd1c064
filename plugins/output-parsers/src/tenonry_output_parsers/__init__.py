"""Output parsers: reasoning, text and tool calls of an answer. A library, and the common parsers; front end."""

from __future__ import annotations
