"""The KV connector `host`: blocks of ended requests in main memory."""
