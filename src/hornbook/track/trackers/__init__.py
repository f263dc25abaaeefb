"""Experiment trackers: TensorBoard, Weights & Biases, MLflow, trackio, and custom ones, behind one interface."""
