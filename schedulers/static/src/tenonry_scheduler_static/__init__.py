"""The scheduler `static`: first come, first served, to the end; runs in the engine process."""

from __future__ import annotations
