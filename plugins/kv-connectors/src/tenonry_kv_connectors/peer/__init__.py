"""The KV connector `peer`: one engine computes a prompt, another decodes."""
