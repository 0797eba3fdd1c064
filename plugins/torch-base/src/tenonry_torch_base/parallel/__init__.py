"""Several ranks that run one model: layers are sharded (tensor parallel) and distributed (pipeline parallel), by the
model's own plans. Worker process.
"""

from __future__ import annotations
