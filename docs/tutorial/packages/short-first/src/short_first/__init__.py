"""A scheduling policy for tenonry that favours short prompts."""
