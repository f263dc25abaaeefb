"""Training: the state, executors, and one step."""
