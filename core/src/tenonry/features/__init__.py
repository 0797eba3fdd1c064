"""What requests bring besides tokens: checked at the door, and sent to an engine once."""
