"""A request check for tenonry that bounds max_tokens."""
