"""A request codec for tenonry that compresses requests with media."""
