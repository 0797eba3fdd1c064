"""The IO processor `template`: text, with each prompt rendered through a template file before it is tokenised."""
