"""What is refused before it reaches a process, and in which words: plugin classes, and requests."""
