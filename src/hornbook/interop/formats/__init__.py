"""Formats of TensorFlow, byte by byte, without it."""
