"""The IO processor `text`: text and chat messages to tokens and back; runs in the front end."""

from __future__ import annotations
