"""A quantisation for tenonry with six bits per weight, in three bytes per four weights."""
