"""Models that pool: vectors and scores of whole prompts. Call set and request check in the front end, the rest in the
worker.
"""

from __future__ import annotations
