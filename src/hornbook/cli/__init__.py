"""The commands, one module each, imported when it is called.

    hornbook corpus build ...  ->  main.main  ->  cli.corpus_command: add_arguments(parser), run(arguments) -> dict

A command prints for people and returns its result; what becomes of errors, ``--json`` and exit codes is decided once,
in ``main``.
"""
