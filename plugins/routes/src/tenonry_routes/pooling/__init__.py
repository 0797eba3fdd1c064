"""Embeddings, reranking, scores and classification over HTTP."""
