"""Samples as functions of (seed, number): order, windows, sequences, masks, mixtures, and the batches made of them."""
