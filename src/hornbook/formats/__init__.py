"""Files of others, read and written byte by byte; nothing here knows what a token is."""
