"""Quality filters of a corpus, counted one by one, and a check of the result.

policy     the choice and order of filters, and the suspicious results
filters    the protocol of a filter; length, patterns and language

The filters in duplicates and decontamination compare documents, hashed by words.
"""
