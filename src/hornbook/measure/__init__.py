"""Benchmarks, profiles and checks of a machine, a recipe or a training."""
