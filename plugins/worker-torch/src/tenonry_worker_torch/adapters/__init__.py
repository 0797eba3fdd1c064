"""Low-rank adapters (LoRA): read from folders of peft, kept beside the model, added to its linear layers row by row.
Worker process.
"""
