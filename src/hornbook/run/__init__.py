"""A training run: its folder, its start, the loop, and what it measures on the way."""
