"""Replacement: engines with other settings take the places of those that run, and streams go on in them. Front end."""
