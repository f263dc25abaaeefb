"""Which documents of a corpus stay: filters that are counted one by one, and a check of the outcome.

policy     which filters, in which order, and which outcome looks wrong
filters    what a filter is; length, patterns and language

exact, near and decontamination are the filters that compare documents; words serves them.
"""
