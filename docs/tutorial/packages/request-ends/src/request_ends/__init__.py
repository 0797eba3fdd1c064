"""A stat logger for tenonry that appends a line per finished request to a file or the log."""
