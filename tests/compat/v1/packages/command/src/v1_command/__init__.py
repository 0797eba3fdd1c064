"""A tenonry command that counts the lines of a file."""
