"""Images in prompts: a vision encoder computes their embeddings, which replace those of tokens."""
