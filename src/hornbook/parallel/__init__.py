"""Devices, ranks and their communication."""
