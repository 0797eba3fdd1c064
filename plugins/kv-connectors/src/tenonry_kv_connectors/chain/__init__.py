"""The KV connector `chain`: several connectors, asked in order."""
