"""A page of the server for people: chat, and the state of the engine. Front end."""

from __future__ import annotations
