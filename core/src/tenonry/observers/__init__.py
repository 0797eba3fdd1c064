"""Observers: what delivers the numbers of engines and requests to stat loggers, beside the tokens' way."""
