"""Corpora on disk: token stores, how they are built, checked, described and converted. No torch."""
