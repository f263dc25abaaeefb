"""Optimizers, schedules and precision: what turns gradients into the next weights."""
