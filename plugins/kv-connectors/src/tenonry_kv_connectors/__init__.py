"""KV connectors of tenonry, and a library for those that keep blocks in a store."""
