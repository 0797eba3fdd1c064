"""The KV connector `chain`: several connectors, queried in order."""
