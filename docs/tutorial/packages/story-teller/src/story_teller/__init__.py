"""An IO processor for tenonry that puts a text before each prompt."""
