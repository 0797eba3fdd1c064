"""Several ranks that run one model: layers cut across them (tensor parallel) and shared out among them (pipeline
parallel), as the model's own plans say. Worker process.
"""

from __future__ import annotations
