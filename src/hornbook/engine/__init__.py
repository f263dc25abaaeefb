"""Training: state, executors, one step, the loop, and the run around it."""
