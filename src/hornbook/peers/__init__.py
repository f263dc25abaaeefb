"""Peers of ``hornbook bench --peer``: the same step and the same generation in another library, timed side by side."""
