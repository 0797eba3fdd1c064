"""Images in prompts: towers make embeddings of them, which stand in place of the embeddings of tokens."""
