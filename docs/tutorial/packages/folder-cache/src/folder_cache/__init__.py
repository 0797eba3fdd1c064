"""A KV connector for tenonry that stores blocks in a folder."""
