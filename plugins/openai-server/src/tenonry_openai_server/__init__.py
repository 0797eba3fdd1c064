"""The command `serve`: an OpenAI-compatible HTTP server; runs in the front end."""

from __future__ import annotations
