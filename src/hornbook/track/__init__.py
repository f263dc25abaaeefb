"""The output of a run for people: its log, its console, its report. No account and no network are needed.

    from hornbook.track.metrics import MetricsLog        the rows that the loop writes
    from hornbook.track.console import Console           the output while it runs
    from hornbook.track.report import write_report       the page afterwards
    from hornbook.track.board import Board               the same page, live

Import the modules one by one, so that a training does not load the report, nor the report torch.
"""
