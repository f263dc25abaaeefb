"""Token stores, the order of samples, examples and batches: from tokens on disk to what a step computes."""
