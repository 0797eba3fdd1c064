"""An output parser for tenonry that reads tool calls in fenced blocks of Markdown."""
