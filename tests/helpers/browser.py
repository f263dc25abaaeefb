"""Pages in headless Chromium, for tests of what their scripts do; skipped where there is none."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from hornbook.track.page import SCRIPTS

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
_OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--enable-logging=stderr")


def dom_of(url: str, folder: Path, *, milliseconds: int = 3000) -> str:
    """Return a page's document after some virtual time, in which timers run at once; a message of its console fails."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *_OPTIONS, f"--user-data-dir={folder / 'chromium'}", f"--virtual-time-budget={milliseconds}"]
    done = subprocess.run([*command, "--dump-dom", url], capture_output=True, text=True, timeout=600, check=True)
    messages = re.findall(r"CONSOLE.*", done.stderr)
    assert messages == [], "the page's console"
    return done.stdout


def data_of(page: str) -> dict[str, Any]:
    """Return what a page's script reads: ``live``, ``over`` and ``curves``."""
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', page)
    assert found is not None
    data = json.loads(found[1])
    assert isinstance(data, dict)
    return data


def computed(expression: str, folder: Path) -> Any:
    """Return the value of a JavaScript expression beside ``charts.js``, through JSON."""
    page = folder / "computed.html"
    source = SCRIPTS[0].read_text(encoding="utf-8")
    put = f"const found = JSON.stringify({expression}); document.body.append(element('pre', {{ id: 'found' }}, found));"
    page.write_text(f"<!doctype html><meta charset=utf-8><body><script>{source}\n{put}</script>", encoding="utf-8")
    found = re.search(r'<pre id="found">(.*?)</pre>', dom_of(page.as_uri(), folder), re.DOTALL)
    assert found is not None
    return json.loads(unescape(found[1]))
