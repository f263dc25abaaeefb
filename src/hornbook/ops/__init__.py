"""Operators: plain functions on tensors that modules call, so that a faster form can take their place."""
