"""The engine: builds its parts from the plan and runs steps. Runs in its own process, or inside `LLM`."""
