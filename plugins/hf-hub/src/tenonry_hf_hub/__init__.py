"""A model's files and facts: a library and the hook module `hf-hub`; runs in the front end and in workers."""

from __future__ import annotations
