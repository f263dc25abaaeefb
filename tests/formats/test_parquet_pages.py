import pytest
from tiny_text import one_line

from hornbook.errors import DataError
from hornbook.formats.parquet import Chunk, find_chunks, measure_pages

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow, the extra 'arrow', is not installed")
parquet = pytest.importorskip("pyarrow.parquet")


def measured(path, column="text", most=1 << 30):
    with path.open("rb") as file:
        return [(chunk, measure_pages(file, chunk, "x", most)) for chunk in find_chunks(file, column, "x")]


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_the_footer_and_the_heads_say_what_pyarrow_reads(tmp_path, codec, version):
    table = pyarrow.table({"number": range(900), "text": [f"text {number}" * 20 for number in range(900)]})
    path = tmp_path / "a.parquet"
    parquet.write_table(
        table, path, row_group_size=400, compression=codec, data_page_version=version, data_page_size=999
    )
    metadata = parquet.ParquetFile(path).metadata
    found = measured(path)
    assert [chunk.num_rows for chunk, _ in found] == [400, 400, 100]
    for group, (chunk, pages) in enumerate(found):
        column = metadata.row_group(group).column(1)
        assert (chunk.offset, chunk.size) == (column.dictionary_page_offset, column.total_compressed_size)
        assert column.total_uncompressed_size * 0.9 < pages.num_bytes <= column.total_uncompressed_size, (
            "less the heads"
        )


def test_bytes_of_a_row(tmp_path):
    path = tmp_path / "a.parquet"
    texts = {"text": ["x" * 1000] * 100}
    parquet.write_table(pyarrow.table(texts), path, use_dictionary=False)
    [(_, pages)] = measured(path)
    assert 1000 <= pages.row_bytes < 1010
    parquet.write_table(pyarrow.table(texts), path, use_dictionary=True)
    [(_, pages)] = measured(path)
    assert 1000 <= pages.row_bytes < 1010, "each row may be the whole dictionary"
    parquet.write_table(pyarrow.table(texts), path, use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY"})
    [(_, pages)] = measured(path)
    assert pages.row_bytes == pages.num_bytes >= 1000, "each row may be the whole page"


def test_long_statistics_make_long_heads(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["x" * 3000] * 3}), path, use_dictionary=False, data_page_version="2.0")
    [(_, pages)] = measured(path)
    assert 9000 < pages.num_bytes < 9100


def test_pages_that_are_too_long_or_lie(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["x" * 3000]}), path, use_dictionary=False)
    with pytest.raises(DataError) as caught:
        measured(path, most=2000)
    assert one_line(caught.value, "x: the page at byte 4 unpacks to 2.9 KiB; write the file with pages of 2.0 KiB")
    [(chunk, _)] = measured(path)
    with path.open("rb") as file, pytest.raises(DataError, match="longer than its column"):
        measure_pages(file, Chunk(num_rows=1, offset=chunk.offset, size=chunk.size - 1), "x", 1 << 30)
    with path.open("rb") as file, pytest.raises(DataError, match="at byte 0 is no head of a page"):
        measure_pages(file, Chunk(num_rows=1, offset=0, size=10), "x", 1 << 30)


def test_a_column_that_is_not_there(tmp_path):
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["a"]}), path)
    assert measured(path, "texts") == []
