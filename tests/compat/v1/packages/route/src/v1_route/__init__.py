"""A route for tenonry's server that counts unfinished requests."""
