"""A step observer for tenonry that logs the number of requests per step."""
