"""The KV connector `disk`: blocks of ended requests in files."""
