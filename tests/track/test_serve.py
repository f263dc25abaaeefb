import http.client
import json
import re
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from html import escape
from pathlib import Path
from urllib.parse import quote

import pytest
from browser import dom_of, needs_chromium
from fake_run import RECIPE, default_rows, make_run, train_row

from hornbook.errors import UserError
from hornbook.track.board import Board, Query
from hornbook.track.comparison_page import write_comparison
from hornbook.track.metrics import MetricsLog
from hornbook.track.report import write_report
from hornbook.track.runs import compare
from hornbook.track.serve import BoardServer


@contextmanager
def serving(board: Board, host: str = "127.0.0.1", token: str = "") -> Iterator[BoardServer]:
    with BoardServer(board, host, 0, token) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def request(
    server: BoardServer, path: str, host: str | None = None, method: str = "GET", cookie: str | None = None
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
    headers = {"Host": host, "Cookie": cookie}
    connection.request(method, path, headers={name: value for name, value in headers.items() if value is not None})
    reply = connection.getresponse()
    assert method != "GET" or reply.headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in reply.headers
    text = reply.read().decode()
    connection.close()
    return reply.status, text


def test_a_failure_of_the_board_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(query: Query) -> dict[str, object]:
        raise RuntimeError("a defect")

    with serving(board := Board([tmp_path])) as server:
        monkeypatch.setattr(board, "answer", answer)
        with pytest.raises(http.client.RemoteDisconnected):
            request(server, "/data")
    assert "RuntimeError: a defect" in capsys.readouterr().err


def test_two_addresses_answer_and_no_other(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "run")
    (tmp_path / "secret").write_text("secret")
    with serving(Board([tmp_path / "runs"])) as server:
        assert server.is_loopback and server.url == f"http://127.0.0.1:{server.server_port}/"
        status, page = request(server, "/")
        assert status == 200 and "<!doctype html>" in page
        status, text = request(server, "/data")
        assert status == 200 and json.loads(text)["selected"] == [str(run)]
        inside = quote(str(run), safe="")
        for path in ("/runs", "/run/metrics.jsonl", "/../secret", "/%2e%2e/secret", f"/{inside}", "/data/", "*"):
            status, text = request(server, path)
            assert (status, text) == (404, "no such page\n")
        for name in ("../secret", str(tmp_path), str(tmp_path / "secret"), f"{run}/../run", "\x00"):
            status, text = request(server, f"/data?run={quote(name, safe='')}")
            assert status == 200 and json.loads(text)["selected"] == [str(run)], "what is not in the list is ignored"
        assert request(server, f"/data?run={'x' * 20_000}")[0] == 404
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
            assert request(server, "/data", method=method)[0] == 501


def test_many_clients_connect_at_once(tmp_path: Path) -> None:
    """With a queue of 5, the kernel dropped the next ones, which tried again after seconds."""
    with BoardServer(Board([tmp_path]), "127.0.0.1", 0) as server, ExitStack() as held:
        for _ in range(64):  # nothing accepts them yet
            connection = held.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex(server.server_address[:2])
            assert select.select([], [connection], [], 0.5)[1], "the connection was not taken at once"


def test_names_of_other_sites_are_refused(tmp_path: Path) -> None:
    """DNS rebinding: a page of evil.example, whose name now leads to 127.0.0.1, asks this server."""
    with serving(Board([tmp_path])) as server:
        for host in (
            "evil.example",
            "evil.example:80",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "",
            "[",
            "a@b",
        ):
            assert request(server, "/data", host)[0] == 403, host
        for host in ("localhost", f"localhost:{server.server_port}", "127.0.0.1:1", "[::1]:80", "LOCALHOST"):
            assert request(server, "/data", host)[0] == 200, host


def test_a_board_with_a_token_answers_only_who_has_it(tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    with serving(Board([tmp_path]), token="s3cret") as server:
        assert server.url.endswith(f":{server.server_port}/?token=s3cret")
        for path in ("/", "/data", "/?token=", "/?token=s3cre", "/data?token=s3crets", "/?token=%C3%A9", "/nothing"):
            status, text = request(server, path)
            assert (status, "`hornbook runs serve` printed" in text) == (403, True), path
        assert request(server, "/data?token=s3cret")[0] == 200
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=600)
        connection.request("GET", "/?token=s3cret")
        reply = connection.getresponse()
        assert (reply.status, reply.headers["Location"]) == (303, "/"), "the token leaves the address"
        cookie, *flags = reply.headers["Set-Cookie"].split("; ")
        assert "HttpOnly" in flags and "SameSite=Lax" in flags
        connection.close()
        for cookies in (cookie, f'broken={{"a"}}; {cookie}'):
            assert request(server, "/", cookie=cookies)[0] == request(server, "/data", cookie=cookies)[0] == 200
        assert request(server, "/data", cookie=cookie.replace("s3cret", "other"))[0] == 403
        assert request(server, "/data", "evil.example", cookie=cookie)[0] == 403
    with serving(Board([tmp_path])) as server:
        assert request(server, "/?token=a%0d%0aEvil:%20b")[0] == 303, "what a request sends is in no header"


@needs_chromium
def test_the_page_keeps_its_token_and_its_selection(tmp_path: Path) -> None:
    one, two = (make_run(tmp_path / "runs" / name) for name in ("one", "two"))
    with serving(Board([tmp_path / "runs"]), token="s3cret") as server:
        chosen = "&".join(f"run={quote(str(run), safe='')}" for run in (one, two))
        page = dom_of(f"{server.url}#{chosen}", tmp_path)
    assert "<h1>2 runs</h1>" in page and ">live</p>" in page


def test_an_absurd_count_of_rows_is_answered(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    with serving(Board([tmp_path])) as server:
        token = json.loads(request(server, "/data")[1])["curves"][0]["token"]
        status, text = request(server, f"/data?run={quote(str(run), safe='')}&seen={token}.{'9' * 5000}")
    assert status == 200 and json.loads(text)["curves"][0]["from"] == 0


@needs_chromium
def test_a_run_whose_name_has_control_bytes_can_be_selected(tmp_path: Path) -> None:
    odd = make_run(tmp_path / "runs" / "a\x1b[31mb\udcff\nc")
    make_run(tmp_path / "runs" / "plain")
    board = Board([tmp_path / "runs"])
    (name,) = [name for name in board.answer({})["parts"]["runs"].split('value="')[1:] if "31mb" in name]
    name = name.partition('"')[0]
    answer = board.answer({"run": [name]})
    assert answer["selected"] == [name] and [curves["id"] for curves in answer["curves"]] == [name]
    assert not re.search(r"[\x00-\x1f\ud800-\udfff]", name)
    with serving(board) as server:
        page = dom_of(f"{server.url}#run={quote(name, safe='')}", tmp_path)
    assert odd.name not in page and "<figure>" in page


def test_a_port_that_is_taken_is_one_line(tmp_path: Path) -> None:
    with serving(Board([tmp_path])) as server, pytest.raises(UserError, match="choose another `host` or `port`"):
        BoardServer(Board([tmp_path]), "127.0.0.1", server.server_port)
    with pytest.raises(UserError, match="cannot serve on"):
        BoardServer(Board([tmp_path]), "no.such.host.invalid", 0)
    with serving(Board([tmp_path]), "0.0.0.0") as server:
        assert not server.is_loopback


class GrowingBoard(Board):
    """A board whose run logs ten more steps after the first answer and an eleventh after the next."""

    def __init__(self, run: Path) -> None:
        super().__init__([run.parent])
        self.run, self.queries, self.next_step = run, list[Query](), 41

    def answer(self, query: Query) -> dict[str, object]:
        answer = super().answer(query)
        self.queries.append(query)
        if self.next_step <= 51:
            with MetricsLog(self.run / "metrics.jsonl") as log:
                for _ in range(10 if self.next_step == 41 else 1):
                    log.append(train_row(self.next_step, loss=0.5, **{"idle/0": 0.25, "idle/1": 0.125}))
                    self.next_step += 1
            with MetricsLog(self.run / "samples.jsonl") as log:
                log.append({"step": self.next_step, "prompt": "", "text": f"<i>written after {self.next_step}"})
        return answer


@needs_chromium
def test_curves_samples_and_idle_stages_move_while_the_page_is_open(tmp_path: Path) -> None:
    recipe = f"{RECIPE}\n[parallel]\npipeline_parallel = 2\n"
    board = GrowingBoard(make_run(tmp_path / "runs" / "run", recipe=recipe))
    with serving(board) as server:
        page = dom_of(server.url, tmp_path, milliseconds=12_000)
    assert len(board.queries) >= 4, "the page asks again and again"
    counts = [query["seen"][0].rpartition(".")[2] for query in board.queries if query.get("seen")]
    assert counts[:2] == ["44", "54"] and counts[-1] == "55", "only for what is new"
    assert 'aria-label="Loss over step. training, logged: first 8, last 0.500, least 0.500' in page
    assert ">live</p>" in page and "step 51/40" in page
    assert re.findall(r'<td class="num">(\d+%)</td>', page) == ["25%", "12%"], "logged since the first answer"
    assert "&lt;i&gt;written after 51" in page and "<i>written" not in page


@needs_chromium
def test_runs_and_what_is_seen_of_them_are_in_the_url(tmp_path: Path) -> None:
    one, two = (make_run(tmp_path / name, recipe=RECIPE.replace('"demo"', f'"{name}"')) for name in ("one", "two"))
    (make_run(tmp_path / "three") / "metrics.jsonl").write_text("nonsense\n")
    rows = [row for row in default_rows() if row["kind"] == "train"]
    (make_run(tmp_path / "other", rows=rows) / "metrics.jsonl").replace(two / "metrics.jsonl")  # without validation
    with serving(Board([tmp_path])) as server:
        shown = "&".join(f"run={quote(str(run), safe='')}" for run in (one, two))
        wanted = f"#{shown}&over=tokens&scale=linear&logx=1&smooth=0"
        page = dom_of(server.url + wanted, tmp_path)
    assert "<h1>2 runs</h1>" in page
    assert re.search('aria-label="Loss, training over tokens. A one: [^"]*; D two: ', page), "in one chart"
    assert "tokens, logarithmic" in page
    assert page.count('<path d="M') >= 10 and 'class="run0 faint"' not in page
    assert '<li class="run0">A one</li>' in page and '<li class="run1">D two</li>' in page
    assert "unreadable" in page
    assert not re.search("undefined|NaN", re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL))


@needs_chromium
def test_the_list_of_runs_is_as_the_url_says(tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("two", 2), ("other", 1)):
        make_run(tmp_path / "runs" / name, recipe=RECIPE.replace("seed = 1234", f"seed = {seed}"))
    with serving(Board([tmp_path / "runs"])) as server:
        page = dom_of(f"{server.url}#find=o&sort=name&group=training.seed", tmp_path)
        assert re.findall(r"<h3>(training.seed: \d) <small>(\d)", page) == [
            ("training.seed: 1", "2"),
            ("training.seed: 2", "1"),
        ]
        assert re.findall(r"<strong>\w  (\w+)", page) == ["one", "other", "two"]
        assert re.findall(r"<strong>\w  (\w+)", dom_of(f"{server.url}#find=tw", tmp_path)) == ["two"]


@needs_chromium
def test_hostile_texts_stay_texts_in_the_browser(tmp_path: Path) -> None:
    hostile = "</script><img src=x onerror=alert(1)>\"'&"
    rows = [*default_rows(), {"kind": "task", "step": 10, "task": hostile, "metric": hostile, "value": 1.0}]
    rows.append({"kind": "topology", "step": 10, "layer": hostile, "pattern": ["0f"]})
    one, two = (
        make_run(tmp_path / "runs" / f"{name}<b>&'\"", rows=rows, recipe=f"name = {json.dumps(hostile)}\n")
        for name in ("one", "two")
    )
    for run in (one, two):
        with MetricsLog(run / "samples.jsonl") as log:
            log.append({"step": 50, "prompt": hostile, "text": hostile})
    with serving(Board([tmp_path / "runs"])) as server:
        for shown in ([one], [one, two]):
            chosen = "&".join(f"run={quote(str(run), safe='')}" for run in shown)
            page = dom_of(f"{server.url}#{chosen}", tmp_path)
            assert "<img" not in page and "<b>&amp;" not in page and page.count("<script") == 2
            assert page.count("&lt;img src=x onerror=alert(1)&gt;") > 5 and "<figure>" in page


@needs_chromium
def test_an_axis_that_the_logs_do_not_have_is_said_and_another_can_be_chosen(tmp_path: Path) -> None:
    rows = [train_row(step, tokens=None) for step in range(1, 5)]
    with serving(Board([make_run(tmp_path / "run", rows=rows)])) as server:
        page = dom_of(f"{server.url}#over=tokens", tmp_path)
    assert "<figure>" not in page
    assert '<section id="curves">' in page and 'value="steps"' in page
    assert re.search('<p id="nothing" class="note">', page)


@needs_chromium
def test_the_report_draws_its_curves_without_a_server(tmp_path: Path) -> None:
    rows = [train_row(step) for step in range(1, 100)]
    page = dom_of(write_report(make_run(tmp_path / "run", rows=rows)).as_uri(), tmp_path)
    assert page.count("<figure>") == 4
    assert 'class="train faint"' in page, "what was logged, below its smoothed curve"
    assert 'type="range"' in page and "<noscript>" in page


@needs_chromium
def test_a_page_fits_a_phone(tmp_path: Path) -> None:
    run = make_run(tmp_path / ("learning-rate-" * 8 + "3"))
    pages = {"report.html": write_report(run), "compared.html": tmp_path / "compared.html"}
    write_comparison(pages["compared.html"], compare([run, run]), "steps")
    for path in pages.values():
        width = "document.title = document.documentElement.scrollWidth - document.documentElement.clientWidth"
        probe = f"<script>addEventListener('load', () => setTimeout(() => {{ {width} }}, 50))</script>"
        source = re.sub(r"<meta http-equiv[^>]*>", "", path.read_text())  # its policy forbids the probe
        frame = 'onload="setTimeout(() => this.title = this.contentDocument.title, 500)"'
        content = escape(source.replace("</body>", f"{probe}</body>"), quote=True)
        phone = f"<iframe {frame} style='width: 340px; height: 800px' srcdoc='{content}'></iframe>"
        (tmp_path / "phone.html").write_text(f"<!doctype html><body>{phone}</body>")
        assert re.search(r'<iframe [^>]*title="0"', dom_of((tmp_path / "phone.html").as_uri(), tmp_path))


@needs_chromium
def test_measurements_are_marked_and_the_last_step_is_named(tmp_path: Path) -> None:
    page = dom_of(write_report(make_run(tmp_path / "run")).as_uri(), tmp_path)
    dots = re.search(r'<path d="([^"]*)" class="validation dot"', page)
    assert dots and dots[1].count("h0") == 4, "after steps 10, 20, 30 and 40"
    assert re.search(r'<span class="lx end"[^>]*>40</span>', page)
    assert "29,139,456 parameters without the token table" in page and "4 layers" in page
    assert "<h1>run <small>recipe demo</small></h1>" in page
