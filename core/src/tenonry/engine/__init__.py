"""The engine: builds the parts from the plan, and turns steps. Runs in its own process, or inside `LLM`."""
