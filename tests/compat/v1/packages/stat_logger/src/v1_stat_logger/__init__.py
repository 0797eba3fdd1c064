"""A stat logger for tenonry that logs the end of each request."""
