"""Anthropic's Messages API as routes of the server. Front end."""

from __future__ import annotations
