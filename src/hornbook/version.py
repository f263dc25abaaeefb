"""The version of hornbook, for records and ``--version``."""

__version__ = "0.1.0"
