"""Predict memory, FLOPs, communication, time and price of a training, without torch."""
