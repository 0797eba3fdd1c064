"""From logits to tokens, vectorised over rows: processors, truncation, counter-based randomness, log-probabilities.

Worker process. What a request wants is put into columns when its row enters; a step of plain greedy rows is one argmax.
"""
