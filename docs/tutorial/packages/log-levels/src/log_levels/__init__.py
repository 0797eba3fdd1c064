"""A call set for tenonry that reads and sets the log level of engines."""
