"""The front end: accepts requests, exchanges messages with engines, converts outputs to streams. The user's process."""
