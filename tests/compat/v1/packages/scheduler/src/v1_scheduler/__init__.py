"""A scheduler for tenonry that runs few requests at once."""
