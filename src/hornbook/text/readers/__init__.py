"""Readers of documents, one module per family of formats; `hornbook.text.documents` maps format names to them."""
