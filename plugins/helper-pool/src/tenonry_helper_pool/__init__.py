"""Helpers that work for several clients of a front end: fair between clients, each job bounded in time and memory."""
