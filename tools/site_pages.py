"""A hook of mkdocs for ``make docs``: the site has README.md as its first page, and the files that pages link to.

mkdocs knows the pages of ``docs/`` only. What they link to outside of it is added under its path in the repository,
Markdown as a page and all else (source files, notebooks) as it is, and links follow. A ``<picture>`` with a dark source
becomes two images, of which the theme shows the one for the reader's colors, chosen by the page's button too.

    page                     link in the repository     link on the site
    README.md, index.md      docs/plan.md               plan.md
    docs/python.md           ../examples/x.ipynb        examples/x.ipynb
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
NOT_SEARCHED = ("LOG.md", "CHANGELOG.md")
"""Chronicles, whose entries would bury the pages that say how it is now."""

LINK = re.compile(r"(?<=\]\()(?!https?://)(?P<target>[^)#\s]+)")
PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="(?P<dark>[^"]+)">\s*'
    r'<img alt="(?P<text>[^"]*)" src="(?P<light>[^"]+)">\s*</picture>'
)
NAME = re.compile(r"<code>(?P<name>[^<]{1,30})</code>")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add README.md, and from there on all that pages link to outside of ``docs/``."""
    waiting = [ROOT / "README.md", *(ROOT / "docs" / file.src_uri for file in files.documentation_pages())]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        uri = uri_of(path)
        if uri not in files.src_uris:
            files.append(File.generated(config, uri, abs_src_path=str(path)))
        if path.suffix == ".md":
            new = {target for target in targets_of(path) if target.is_file()} - seen
            seen |= new
            waiting += new
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the page with the site's links; one that leads nowhere stays, for mkdocs to report."""
    here = Path(str(page.file.abs_src_path))
    if here.name in NOT_SEARCHED:
        page.meta["search"] = {"exclude": True}

    def moved(link: re.Match[str]) -> str:
        target = (here.parent / link["target"]).resolve()
        if not target.is_file():
            return link["target"]
        return posixpath.relpath(uri_of(target), posixpath.dirname(page.file.src_uri) or ".")

    two = r"![\g<text>](\g<light>#only-light)![\g<text>](\g<dark>#only-dark)"
    return LINK.sub(moved, PICTURE.sub(two, markdown))


def on_page_content(html: str, **_: object) -> str:
    """Mark code that is short enough for a line of a phone's screen, which ``docs/site.css`` keeps on one."""
    return NAME.sub(r'<code class="name">\g<name></code>', html)


def targets_of(page: Path) -> Iterator[Path]:
    """The files that a page links to."""
    for link in LINK.finditer(page.read_text(encoding="utf-8")):
        yield (page.parent / link["target"]).resolve()


def uri_of(path: Path) -> str:
    """A file's path in mkdocs' folder of pages."""
    inside = path.relative_to(ROOT).as_posix()
    return "index.md" if inside == "README.md" else inside.removeprefix("docs/")
