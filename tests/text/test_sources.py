import os

import pytest
from tiny_text import one_line

from hornbook.errors import StorageError, UserError
from hornbook.text.documents import ReadOptions, find_sources, list_sources, read_documents


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["b.txt", "a.txt", "a/z.py", "a/deep/er/x.txt", ".hidden", ".git/x.txt", "c/tests/t.txt", "c/x.py.gz"]
    for name in names:
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    return tmp_path


def test_folders_are_read_in_the_order_of_names_without_what_is_hidden(folder):
    expected = ["in/a/deep/er/x.txt", "in/a/z.py", "in/a.txt", "in/b.txt", "in/c/tests/t.txt", "in/c/x.py.gz"]
    assert find_sources(["in"]) == expected
    assert find_sources([folder / "in"]) == [str(folder / name) for name in expected]


def test_files_globs_and_standard_input_each_once(folder):
    assert find_sources(["in/b.txt", "-", "in/*.txt", "in/b.txt"]) == ["in/b.txt", "-", "in/a.txt"]
    assert find_sources(["in/a/**"]) == ["in/a/deep/er/x.txt", "in/a/z.py"]
    assert find_sources(["in/?"]) == ["in/a/deep/er/x.txt", "in/a/z.py", "in/c/tests/t.txt", "in/c/x.py.gz"]


def test_a_file_is_read_once_by_whatever_names_and_links(folder):
    (folder / "in" / "a link.txt").symlink_to(folder / "in" / "b.txt")
    absolute = str(folder / "in")
    expected = ["./in/b.txt", "in/a/deep/er/x.txt", "in/a/z.py", "in/a.txt", "in/c/tests/t.txt", "in/c/x.py.gz"]
    assert find_sources(["./in/b.txt", "in", "./in", absolute, "in/../in/b.txt", f"{absolute}/*"]) == expected
    (folder / "-").write_text("a file called so")
    assert find_sources(["-", "./-"]) == ["-", "./-"]


def test_a_file_whose_name_looks_like_a_glob(folder):
    (folder / "odd[1].txt").write_text("text")
    assert find_sources(["odd[1].txt"]) == ["odd[1].txt"]


def test_suffixes_and_exclude(folder):
    assert find_sources(["in"], suffixes=[".py"]) == ["in/a/z.py", "in/c/x.py.gz"]
    assert find_sources(["in"], suffixes=[".PY", ".txt"], exclude=["deep", "a.*", "tests"]) == [
        "in/a/z.py",
        "in/b.txt",
        "in/c/x.py.gz",
    ]
    assert find_sources(["in/*"], suffixes=[".gz"]) == ["in/c/x.py.gz"]
    assert find_sources(["in/b.txt"], suffixes=[".py"]) == ["in/b.txt"], "named outright"


def test_names_that_a_shell_expanded_are_excluded_as_those_of_a_glob(folder):
    named = ["in/a", "in/a.txt", "in/b.txt", "in/c"]
    assert find_sources(named, exclude=["b.*", "c"]) == find_sources(["in/*"], exclude=["b.*", "c"])
    assert find_sources(["in/b.txt", "-"], exclude=["in"]) == ["in/b.txt", "-"], "the folder above was named"
    assert find_sources(["in/b.txt"], exclude=["b*"]) == []
    with pytest.raises(UserError) as caught:
        list_sources(["in/b.txt", "in/c"], ReadOptions(exclude=("b*", "c")))
    assert one_line(caught.value, "`exclude='b*'` `exclude='c'` excludes every input")


def test_what_was_named_before_a_wildcard_is_not_excluded(folder):
    for named in ("in", "./in", str(folder / "in")):
        assert find_sources([f"{named}/*.txt"], exclude=["in", folder.name]) == [f"{named}/a.txt", f"{named}/b.txt"]
    assert find_sources(["i*/*.txt", "in/a.txt"], exclude=["b.*"]) == ["in/a.txt"]
    with pytest.raises(UserError, match="no file to read"):
        find_sources(["i*/*.txt"], exclude=["in"])
    assert find_sources(["in/c/**"], exclude=["tests"]) == ["in/c/x.py.gz"]


@pytest.mark.parametrize(
    ("inputs", "options", "part"),
    [
        (["nothing"], {}, "nothing: no such file"),
        (["in", "no*thing"], {}, "no*thing: no file"),
        (["in"], {"suffixes": [".rst"]}, "(suffix .rst)"),
        (["in"], {"suffixes": [".py"], "exclude": ["?.py*"]}, "(suffix .py, not ?.py*)"),
        (["empty"], {}, "empty: no file to read; check the path (hidden"),
        ([], {}, "no input"),
    ],
)
def test_inputs_that_name_nothing(folder, inputs, options, part):
    (folder / "empty").mkdir()
    (folder / "empty" / ".hidden").write_text("text")
    with pytest.raises(UserError) as caught:
        find_sources(inputs, **options)
    assert one_line(caught.value, part)


def test_links(folder):
    (folder / "in" / "a" / "round").symlink_to(folder / "in")
    (folder / "in" / "zz").symlink_to(folder / "other")
    (folder / "other").mkdir()
    (folder / "other" / "x.txt").write_text("text")
    found = find_sources(["in"])
    assert "in/zz/x.txt" in found
    assert len(found) == len(set(map(os.path.realpath, found))) == 7


def test_a_link_to_itself_is_a_file_that_cannot_be_opened(folder):
    (folder / "in" / "loop.txt").symlink_to("loop.txt")
    (folder / "in" / "here").symlink_to(".")
    assert "in/loop.txt" in find_sources(["in"])
    assert "in/loop.txt" not in find_sources(["in"], suffixes=[".py"])
    with pytest.raises((UserError, StorageError), match=r"in/loop\.txt: Too many levels of symbolic links"):
        list(read_documents(["in"], ReadOptions(exclude=("c",))))


def test_a_lattice_of_links_is_walked_once(folder):
    (folder / "lattice").mkdir()
    for number in range(30):  # 2**30 paths lead to the last folder
        (folder / "lattice" / f"{number:02}").mkdir()
        for name in "ab":
            (folder / "lattice" / f"{number:02}" / name).symlink_to(f"../{number + 1:02}")
    (folder / "lattice" / "30").mkdir()
    (folder / "lattice" / "30" / "x.txt").write_text("text")
    [found] = find_sources(["lattice"])
    assert os.path.realpath(found) == str(folder / "lattice" / "30" / "x.txt")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(folder):
    (folder / "in" / "c").chmod(0)
    with pytest.raises(UserError, match="cannot read the folder in/c"):
        find_sources(["in"])
    (folder / "in" / "c").chmod(0o755)


@pytest.mark.parametrize(
    ("pattern", "name"), [("sub/*", "sub"), ("sub/", "sub"), ("*/tests/*", "tests"), ("a/b c.txt", "b c.txt")]
)
@pytest.mark.parametrize("item", ["in", "in/b.txt", "hf:owner/name"])
def test_patterns_of_more_than_a_name_are_refused(folder, pattern, name, item):
    with pytest.raises(UserError) as caught:
        list_sources([item], ReadOptions(exclude=("a*", pattern)))
    assert one_line(caught.value, f"`exclude={pattern!r}`", "the name of one file or folder", f"use `exclude={name!r}`")
    assert caught.value.exit_code == 2
