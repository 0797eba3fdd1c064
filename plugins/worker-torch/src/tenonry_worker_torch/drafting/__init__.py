"""Speculative decoding: tokens that a drafter guesses, verified several at once."""
