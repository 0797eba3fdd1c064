"""Several models in one server: loaded on request, unloaded when idle, within a memory budget. Front end."""

from __future__ import annotations
