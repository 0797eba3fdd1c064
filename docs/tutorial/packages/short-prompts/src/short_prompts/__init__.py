"""A scheduler for tenonry that starts short prompts first."""
