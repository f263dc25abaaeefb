"""Detection of formats: of a source by its content or name, of a target by its name.

    corpora/mine (a manifest, a .idx)     store           wiki.pkl, wiki.pickle        pickle
    data/pile_text_document               megatron        seqlen_128.train.npy         npy
    x.tfrecord, a folder of them          tfrecord, bert-tfrecord, ...-remasked or ...-packed, by the first record
    a file that begins with a record      the same
    a folder with state.json, x.arrow     bert-arrow
    a file with llm.c's header            llm.c

Raw tokens, such as nanoGPT's, and files with unknown suffixes need ``--from``; a folder as target needs ``--to``.
"""

from pathlib import Path
from typing import Final

from hornbook.corpora.folders import MANIFEST, splits_of
from hornbook.corpora.megatron import index_paths
from hornbook.errors import DataError, UserError
from hornbook.formats.arrow import is_dataset
from hornbook.formats.foreign import name_foreign
from hornbook.interop.convert import DOCUMENT_FORMATS, DOCUMENT_SOURCES, INSTANCE_FORMATS, INSTANCE_SOURCES
from hornbook.interop.convert.bert_packed import PACKED
from hornbook.interop.convert.bert_tfrecord import PLAIN, REMASKED
from hornbook.interop.convert.stores import megatron_prefix
from hornbook.interop.convert.token_files import FEATURES, how_to_convert, is_llmc
from hornbook.interop.formats.tfrecord import begins_with_record, find_tfrecords, read_examples

_ENDINGS: Final = {".npy": "npy", ".pkl": "pickle", ".pickle": "pickle", ".bin": "megatron", ".idx": "megatron"}
_SCHEMAS: Final = {
    FEATURES: "tfrecord",
    frozenset(PLAIN): "bert-tfrecord",
    frozenset(REMASKED): "bert-tfrecord-remasked",
    **dict.fromkeys(PACKED, "bert-tfrecord-packed"),
}


def detect_source(path: Path) -> str:
    """Return the format of the file, folder or prefix at ``path``.

    Raises:
        UserError: it does not exist, or its format is not recognized.
        DataError: a TFRecord file is damaged, or has an unknown schema.
    """
    found: str | None
    if path.is_dir():
        if (path / MANIFEST).exists() or splits_of(path):
            found = "store"
        elif is_dataset(path):
            found = "bert-arrow"
        elif any(path.glob("*.tfrecord*")):
            found = _detect_schema(path)
        elif foreign := name_foreign(path):
            raise UserError(f"{path} is {foreign}")
        else:
            found = "megatron" if any(path.glob("*.idx")) else None
    elif index_paths(megatron_prefix(path))[1].is_file():
        found = "store" if (path.parent / MANIFEST).exists() and path.stem == "tokens" else "megatron"
    elif not path.exists():
        raise UserError(f"{path}: no such file, folder, or prefix of a .bin and .idx; check the source")
    elif ".tfrecord" in path.name:
        found = _detect_schema(path)
    elif is_llmc(path):
        found = "llm.c"
    elif path.suffix == ".bin" or name_foreign(path):
        raise UserError(str(how_to_convert(path)))
    else:
        found = "bert-arrow" if path.suffix == ".arrow" else _ENDINGS.get(path.suffix)
    if found is None and path.is_file() and begins_with_record(path):
        found = _detect_schema(path)
    if found is None:
        known = ", ".join((*DOCUMENT_SOURCES, *INSTANCE_SOURCES))
        raise UserError(f"{path}: the format is not recognized; set it with `source_format` to one of {known}")
    return found


def detect_target(path: Path, source_format: str) -> str:
    """Return the format for the name of a target, given that of the source. Raises UserError if there is none."""
    if path.suffix == ".tfrecord":
        return "tfrecord" if source_format in DOCUMENT_SOURCES else "bert-tfrecord"
    if path.suffix in _ENDINGS:
        return _ENDINGS[path.suffix]
    fitting = DOCUMENT_FORMATS if source_format in DOCUMENT_SOURCES else INSTANCE_FORMATS
    raise UserError(f"{path}: no format has this suffix; set it with `target_format` to one of {', '.join(fitting)}")


def _detect_schema(path: Path) -> str:
    """Return the format for the features of the first record. Raises DataError."""
    for _, features in read_examples(find_tfrecords(path)):
        if (found := _SCHEMAS.get(frozenset(features))) is None:
            names = ", ".join(sorted(features))[:200]
            raise DataError(
                f"{path}: the first record has the features {names!r}; expected only input_ids, or those of BERT"
            )
        return found
    raise DataError(f"{path}: no records; expected at least one")
