"""JSON schemas of all drafts as few and plain forms of values, which grammar backends write in their own way."""
