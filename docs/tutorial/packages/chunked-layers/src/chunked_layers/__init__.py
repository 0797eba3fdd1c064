"""A model pass for tenonry that bounds the memory of feed-forward layers."""
