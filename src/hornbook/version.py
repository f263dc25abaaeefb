"""The version of hornbook."""

__version__ = "0.1.0"
