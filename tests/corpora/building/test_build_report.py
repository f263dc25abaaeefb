from collections import Counter

from hornbook.corpora.building.report import Report, example_lines
from hornbook.text.reading import DataError, Document, Position, Tally


def test_a_report_goes_through_json():
    tally = Tally(documents=3, messages=["x: bad"], faulty={2}, skipped=Counter(redirects=2), position=Position(4, 5))
    report = Report(tally=tally, dropped=Counter(a=1), lost=Counter({7: 2}))
    report.add_dropped(Document("some\ntext" * 20, "b.jsonl", 12, 180), 3, "b")
    assert Report.from_json(report.to_json()) == report


def test_a_sum_of_reports_is_that_of_one_reading():
    whole, parts = Report(), [Report(), Report(), Report()]
    for number in range(30):
        for report in (whole, parts[number // 10]):
            report.tally.documents += 1
            report.tally.position = Position(0, number)
            report.tally.add_fault(number % 3, DataError(f"fault {number}"))
            report.add_dropped(Document(f"text {number}", "a", number, 6), number % 2, f"filter {number % 4 % 3}")
    assert sum(parts, Report()) == whole
    assert len(whole.tally.messages) == 10 and {len(found) for found in whole.examples.values()} == {3}


def test_lines_of_examples():
    report = Report()
    report.add_dropped(Document("some\ntext", "b.parquet", 1200, 9), 0, "too short")
    assert example_lines(report.to_json()["examples"], "auto") == ["too short: b.parquet at row 1,200: some\\ntext"]
