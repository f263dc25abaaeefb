"""Words that go with a number."""


def counted(count: int, noun: str) -> str:
    """Say how many there are of what is named in the singular: "1 file", "0 files", "1,234 empty files"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
