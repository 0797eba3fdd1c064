"""A worker for tenonry whose model counts."""
