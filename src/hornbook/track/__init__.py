"""What a run leaves for people: its log, its console, its report. Nothing here needs an account or a network.

    from hornbook.track.metrics import MetricsLog        rows out of the loop
    from hornbook.track.console import Console           what is seen while it runs
    from hornbook.track.report import write_report       what is seen afterwards
    from hornbook.track.board import Board               the same, while it grows

The rooms are imported one by one, so that a training does not load the report, nor a report torch.
"""
