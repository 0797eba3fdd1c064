"""The model `demo`: a small trained model as package data, found by name."""

from __future__ import annotations
