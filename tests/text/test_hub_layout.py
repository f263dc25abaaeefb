import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_text import one_line

from hornbook.errors import UserError
from hornbook.text.hub_layout import Listing, choose, default_config, of_one_kind, splits_of


def splits(*files, configs=(), converted=False):
    return splits_of(Listing(commit="0" * 40, files=files, configs=list(configs)), converted=converted)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["data/train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"], {"train", "test"}),
        (["data/extra.one-00000-of-00001.parquet", "train.csv"], {"extra.one"}),
        (["my_train_file.jsonl", "my-dev-file.jsonl", "eval.jsonl", "other.jsonl"], {"train", "validation", "test"}),
        (["train/a.jsonl", "valid/b.jsonl", "x/c.jsonl"], {"train", "validation"}),
        (["a.jsonl", "b/c.jsonl", "constraint.jsonl"], {"train"}),
    ],
)
def test_splits_by_the_names_of_files(files, expected):
    assert set(splits(*files)["default"]) == expected


def test_what_is_no_data_is_left_out():
    hidden = [".hidden/a.json", "__pycache__/a.json", "README.md", "dataset_infos.json", "a\nb.json", "/abs.json"]
    assert splits(*hidden, "a.json") == {"default": {"train": ["a.json"]}}


FILES = ("en/a-1.txt", "en/a-2.txt", "en/deep/b.txt", "de/a-1.txt", "root.txt")


@pytest.mark.parametrize(
    ("data_files", "expected"),
    [
        ("en/*.txt", {"train": ["en/a-1.txt", "en/a-2.txt"]}),
        (["en/**", "root.txt"], {"train": ["en/a-1.txt", "en/a-2.txt", "en/deep/b.txt", "root.txt"]}),
        ("**/b.txt", {"train": ["en/deep/b.txt"]}),
        ("**/*.txt", {"train": sorted(FILES)}),
        (
            {"train": "en/a-[12].txt", "test": ["de/a-?.txt"]},
            {"train": ["en/a-1.txt", "en/a-2.txt"], "test": ["de/a-1.txt"]},
        ),
        ([{"split": "x", "path": "./en/a-[!2].txt"}, {"split": "none", "path": "missing"}], {"x": ["en/a-1.txt"]}),
        ([{"split": "x"}, 5, {"path": ["en/a.1.txt"]}], {}),
    ],
)
def test_files_by_the_patterns_of_a_card(data_files, expected):
    configs = [{"config_name": "some", "data_files": data_files}]
    assert splits(*FILES, configs=configs) == {"some": expected}


def test_folders_of_a_card():
    configs = [
        {"config_name": "en", "data_dir": "en"},
        {"config_name": "de", "data_dir": "de/", "data_files": "a*"},
        "x",
    ]
    found = splits(*FILES, configs=configs)
    assert found == {"en": {"train": ["en/a-1.txt", "en/a-2.txt", "en/deep/b.txt"]}, "de": {"train": ["de/a-1.txt"]}}


def test_what_the_hub_converted():
    files = ["en/train/0000.parquet", "en/train/0001.parquet", "en/partial-test/0000.parquet", "x.parquet"]
    assert splits(*files, converted=True) == {"en": {"train": files[:2], "partial-test": files[2:3]}}


def test_most_files_decide_the_kind():
    kinds = ((".parquet",), (".jsonl", ".json"), (".txt",))
    assert of_one_kind(["a.json", "b.jsonl.gz", "c.parquet", "d.zip"], kinds) == ["a.json", "b.jsonl.gz"]
    assert of_one_kind(["a.json", "c.PARQUET"], kinds) == ["c.PARQUET"]
    assert of_one_kind(["d.zip"], kinds) == []


def test_choosing():
    assert choose({"one": 1}, None, "x", "split") == "one"
    assert choose({"one": 1, "default": 2}, None, "x", "config", "default") == "default"
    assert choose({"one": 1, "two": 2}, "two", "x", "split") == "two"
    with pytest.raises(UserError) as caught:
        choose({f"s{number}\n": 1 for number in range(20)}, None, "hf:x", "split")
    assert one_line(caught.value, "hf:x has the splits s0, s1, ", ", ...; choose one with --split")


def test_the_configuration_that_is_meant():
    configs = [{"config_name": "en"}, {"config_name": "de", "default": True}]
    assert default_config(Listing(commit="", files=(), configs=configs)) == "de"
    assert default_config(Listing(commit="", files=(), configs=configs[:1])) == "default"


@given(glob=st.text(alphabet="ab*?[]!\\/.-", max_size=12), name=st.text(alphabet="ab/.-", min_size=1, max_size=8))
def test_any_pattern_is_a_pattern(glob, name):
    splits(name, configs=[{"config_name": "x", "data_files": glob}])
