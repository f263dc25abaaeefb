"""Small Parquet files, some of them built to do harm."""

import pyarrow
import pyarrow.parquet

TEXTS = ("one", "two é", None, "three " * 9, "", "four") * 5
SHAPES = {
    "dictionary": {"row_group_size": 10},
    "checksums": {
        "compression": "zstd",
        "use_dictionary": False,
        "data_page_version": "2.0",
        "write_page_checksum": True,
        "data_page_size": 100,
        "store_schema": False,
    },
    "deltas": {
        "compression": "none",
        "use_dictionary": False,
        "column_encoding": {"text": "DELTA_BYTE_ARRAY", "meta.body": "DELTA_LENGTH_BYTE_ARRAY"},
        "data_page_size": 100,
    },
}


def write_parquet(path, shape="dictionary"):
    """A column ``text`` and, in structs, a column ``meta.body``, both of the same texts."""
    table = pyarrow.table({"text": pyarrow.array(TEXTS, pyarrow.string()), "meta": [{"body": text} for text in TEXTS]})
    pyarrow.parquet.write_table(table, path, **SHAPES[shape])
    return path


def write_groups(path, groups):
    """A row group for each list of texts, those without any, too."""
    with pyarrow.parquet.ParquetWriter(path, pyarrow.schema([("text", pyarrow.string())])) as writer:
        for texts in groups:
            writer.write_table(pyarrow.table({"text": pyarrow.array(texts, pyarrow.string())}))
    return path


def write_bomb(path, texts, **options):
    """Texts in one row group and in as few pages as may be."""
    plain = {"compression": "zstd", "use_dictionary": False, "write_statistics": False, "data_page_size": 1 << 30}
    pyarrow.parquet.write_table(pyarrow.table({"text": texts}), path, **(plain | options))
    return path
