"""A route for tenonry's server that reports its load."""
