"""The site of ``make docs``: it builds without a warning, with all pages and the public API."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import PAGES, ROOT

import hornbook

pytest.importorskip("mkdocs", reason="the site needs the extra hornbook[docs]")


def build(root: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a checkout; not with ``--quiet``, which keeps warnings from being errors, too."""
    words = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    return subprocess.run(words, cwd=root, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    finished = build(ROOT, folder)
    assert finished.returncode == 0, finished.stderr
    return folder


@pytest.mark.slow
def test_all_pages_and_public_names_are_there(site: Path) -> None:
    assert 'id="two-commands"' in (site / "index.html").read_text(encoding="utf-8")
    pages = {page.relative_to(ROOT).with_suffix(".html").as_posix().removeprefix("docs/") for page in PAGES}
    assert [page for page in pages - {"README.html"} if not (site / page).exists()] == []
    api = (site / "api.html").read_text(encoding="utf-8")
    assert [name for name in hornbook.__all__ if name != "__version__" and f'id="hornbook.{name}"' not in api] == []


@pytest.mark.slow
def test_nothing_is_loaded_from_other_servers(site: Path) -> None:
    loaded = re.compile(r'<(?:script|link|img)\b[^>]*(?:src|href)="(https?://[^"]+)"')
    found = {url for page in site.rglob("*.html") for url in loaded.findall(page.read_text(encoding="utf-8"))}
    assert found == set()


@pytest.mark.slow
def test_links_that_lead_nowhere_would_be_found(tmp_path: Path) -> None:
    for name in ("docs", "src", "tools", "examples", "tests", "benchmarks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.md"), ROOT / "mkdocs.yml", ROOT / "LICENSE"):
        shutil.copy(path, tmp_path)
    with (tmp_path / "docs" / "plan.md").open("a", encoding="utf-8") as page:
        page.write("\n[page](nothing.md) ![picture](pictures/nothing.png) [section](recipes.md#nothing)\n")
    finished = build(tmp_path, tmp_path / "site")
    assert finished.returncode == 1
    found = [line for line in finished.stderr.splitlines() if "'plan.md' contains a link" in line]
    assert len(found) == 3, finished.stderr
