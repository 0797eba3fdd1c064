"""Pages of the reference that are written from the code: one module per page."""
