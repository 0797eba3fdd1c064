"""`tenonry bench models`: real models here and on other engines, each in a separate process, interleaved."""
