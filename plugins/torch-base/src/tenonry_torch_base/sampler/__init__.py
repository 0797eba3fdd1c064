"""From logits to tokens, vectorised over rows: processors, truncation, counter-based randomness, log-probabilities.

Worker process. The parameters of a request are put into columns when its row enters; a step of plain greedy rows is one
argmax.
"""
