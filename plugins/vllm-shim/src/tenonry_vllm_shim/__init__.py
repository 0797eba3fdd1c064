"""Adapters that run plugins written for vLLM. vLLM need not be installed."""
