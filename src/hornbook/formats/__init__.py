"""Codecs for the file formats of other projects; they know bytes and arrays, but not tokens."""
