import pytest

from hornbook.config.recipe_files import LARGEST_FILE, find_recipe, read_document, run_of
from hornbook.errors import RecipeError


def refused(path):
    with pytest.raises(RecipeError) as caught:
        read_document(path, "r.toml")
    (problem,) = caught.value.problems
    assert "\n" not in problem
    return problem


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[model\n", "r.toml:1:7: not TOML: "),
        (b"a = 1\nb = \n", "r.toml:2:5: not TOML: "),
        (b"a = 1\na = 2\n", "r.toml:2:6: not TOML: "),
        (b'a = "x', "r.toml: not TOML: "),
        (b"a = " + b"9" * 5000, "r.toml: not TOML: "),
        (b"a = " + b"[" * 5000, "r.toml: not a recipe: tables or arrays are nested too deeply"),
        (b"# fine\n# \xff\n", "r.toml:2: not UTF-8 at byte 9"),
        (b"a\0b = 1", "r.toml:1:2: not TOML: "),
        (b"#" * (LARGEST_FILE + 1), "r.toml: larger than 1048576 bytes"),
        ("a = 1".encode("utf-16"), "r.toml:1: not UTF-8 at byte 0"),
    ],
)
def test_files_that_are_no_recipes(tmp_path, content, problem):
    path = tmp_path / "r.toml"
    path.write_bytes(content)
    assert refused(path).startswith(problem.removesuffix(" "))


def test_paths_that_are_no_files(tmp_path):
    what = "r.toml: is a folder, neither a recipe file nor a run"
    assert refused(tmp_path) == f"{what}; to train on it: hornbook train demo --data.train {tmp_path}"
    (tmp_path / "checkpoints").mkdir()
    assert refused(tmp_path) == f"{what}; to start a run from its weights: --init-from {tmp_path}"
    assert refused(tmp_path / "missing.toml") == "r.toml: no such recipe file or run"
    assert refused(tmp_path / ("x" * 5000)).startswith("r.toml: cannot be read: ")
    assert refused(tmp_path / "a\0b") == "r.toml: no such recipe file or run"


def test_a_run_is_found_by_its_folder_and_by_its_recipe(tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    assert run_of(find_recipe(f"{tmp_path}/recipe.toml")) is None, "a recipe of that name alone"
    (tmp_path / "run.json").write_text("{}")
    for reference in (tmp_path, tmp_path / "recipe.toml"):
        assert run_of(find_recipe(str(reference))) == tmp_path


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path):
    path = tmp_path / "r.toml"
    path.write_bytes(b"\xef\xbb\xbf[model]\r\nnum_layers = 1\r\n")
    assert read_document(path, "r.toml")[0] == {"model": {"num_layers": 1}}
