"""A drafter for tenonry that guesses the most frequent next token of its row."""
