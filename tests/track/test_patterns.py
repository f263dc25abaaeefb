"""Pictures of block-sparse patterns in the report."""

from hornbook.track.run_tables import pattern_table


def row(step: int, pattern: object, layer: str = "blocks.0.<up>") -> dict[str, object]:
    return {
        "kind": "topology",
        "step": step,
        "layer": layer,
        "pattern": pattern,
        "density": 0.25,
        "tried": 0.5,
        "pruned": 3,
    }


def test_a_layer_has_its_first_and_its_last_pattern() -> None:
    page = pattern_table([row(0, ["f0", "00"]) | {"pruned": 0}, row(20, ["0f", "03"]), row(30, ["00", "0f"])])
    assert page.count("<svg") == 2 and page.count("<tr>") == 2
    assert 'd="M0 0h1v1h-1z" fill="currentColor" fill-opacity="1.00"' in page
    assert 'd="M1 1h1v1h-1z"' in page and "M1 0" not in page
    assert "blocks.0.&lt;up&gt;" in page
    assert all(f">{text}</td>" in page for text in ("25.0%", "50.0%", "2", "6"))


def test_shares_of_blocks_are_shades() -> None:
    assert 'fill-opacity="0.20"' in pattern_table([row(1, ["3"])])


def test_what_is_no_pattern_is_left_out() -> None:
    for pattern in (None, 3, ["<script>"], [1]):
        page = pattern_table([row(1, pattern)])
        assert "<svg" not in page and "script" not in page
    assert pattern_table([]) == ""
