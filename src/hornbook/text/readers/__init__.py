"""One module a format: how its files become documents; `hornbook.text.documents` has the table of them."""
