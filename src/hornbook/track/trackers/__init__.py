"""Experiment trackers: TensorBoard, Weights & Biases, MLflow, trackio, and those of one's own, behind one interface."""
