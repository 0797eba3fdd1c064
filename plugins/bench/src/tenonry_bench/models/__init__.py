"""`tenonry bench models`: real models here and on other engines, each in a process of its own, interleaved."""
