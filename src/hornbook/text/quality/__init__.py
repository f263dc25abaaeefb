"""Which documents of a corpus stay: filters that are counted one by one, and a last look at the outcome.

filter     what a filter is
options    which of them, as data
pipeline   from options to filters, in the order in which they apply
suspicion  whether the outcome looks right

length, patterns, exact, decontamination, language and near are the filters; words and signatures serve the last three.
numpy, no torch; this module imports nothing, so that a command's help does not wait for numpy.
"""
