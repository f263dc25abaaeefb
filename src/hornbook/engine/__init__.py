"""Training: state, executors, one step, the loop, and the run around it."""

from hornbook.engine import encoder_samples, labelled  # each registers what its objectives learn from

__all__ = ["encoder_samples", "labelled"]
