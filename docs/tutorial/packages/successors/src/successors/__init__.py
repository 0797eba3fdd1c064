"""A worker for tenonry without a model, whose rule for the next token is an extension point."""
