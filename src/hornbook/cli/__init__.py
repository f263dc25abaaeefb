"""The commands of the command line, one module each, imported on demand.

    hornbook corpus build ...  ->  main.main  ->  cli.corpus_command: add_arguments(parser), run(arguments) -> dict

A command prints text for people and returns its result; ``main`` handles errors, ``--json`` and exit codes.
"""
