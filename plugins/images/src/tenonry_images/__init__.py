"""Images in prompts: from the URL in a message to what a model's towers read, within limits. Front end."""
