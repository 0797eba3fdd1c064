"""From logits to tokens, vectorised over rows: processors, truncation, counter-based randomness, log-probabilities.

Worker process. Parameters of a request are written to columns when its row enters; a step of plain greedy rows is one
argmax.
"""
