"""BERT's instances, masked or not: a source of samples, and a builder."""
