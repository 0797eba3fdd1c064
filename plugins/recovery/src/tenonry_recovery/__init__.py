"""Continuity: an engine that died is started again, and its streams go on where they were. Front end."""
