"""Readers of documents, quality filters, sentence splitting and tokenizers, without torch."""
