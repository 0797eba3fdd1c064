"""A model for tenonry in a shared store, in the version of this package."""
