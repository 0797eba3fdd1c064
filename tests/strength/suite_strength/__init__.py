"""Strength of the conformance suites: broken plugins they reject, correct ones they accept, mutants they kill."""
