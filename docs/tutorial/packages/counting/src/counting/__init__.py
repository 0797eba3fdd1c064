"""A worker for tenonry that counts."""
