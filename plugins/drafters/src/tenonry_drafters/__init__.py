"""Drafters guess the next tokens of requests, so that one pass of the model verifies several; imports no torch."""
