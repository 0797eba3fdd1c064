"""Low-rank adapters (LoRA): read from folders of peft, stored outside of the model, added to linear layers by row.
Worker process.
"""
