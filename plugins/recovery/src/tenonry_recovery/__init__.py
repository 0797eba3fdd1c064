"""Restarts and replaces engines, and resumes their streams. Front end, or the supervisor of several."""
