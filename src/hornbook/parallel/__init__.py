"""Ranks: who this process is, and the sums that it shares with the others."""
