"""A run is shown while it trains, to this machine alone."""

import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import until
from tests.support.pages import charts_of
from tests.support.runs import BREAKS_OUT, WrittenRun
from trivium.errors import UsageError
from trivium.report.follow import Followed
from trivium.report.watch import RunServer
from trivium.run import glance
from trivium.run.events import Failed, parse_event


@contextmanager
def served(folder: Path) -> Iterator[RunServer]:
    with RunServer(folder, 0, poll_seconds=0.1) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server: RunServer, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.putrequest("GET", path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


@pytest.fixture
def run(tmp_path: Path) -> WrittenRun:
    """A run that has taken 20 of 300 steps."""
    run = WrittenRun(tmp_path / "run")
    run.start()
    run.take(0, 20)
    return run


@pytest.mark.slow
def test_the_page_follows_the_run_and_keeps_zoom_and_choices(run: WrittenRun, browser: Browser) -> None:
    with served(run.folder) as server:
        page = browser.new_page()
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(server.url)
        expect(page.locator(".status")).to_have_text("running")
        last = "report.views.get('loss').plot.data[0].at(-1)"
        assert page.evaluate(last) == 20
        page.locator("#zoom").select_option("general")
        page.locator("#block-loss .legend button", has_text="running mean").click()
        plot = page.evaluate_handle("report.views.get('loss').plot")
        run.take(20, 30)
        until(page, f"{last} === 30")
        assert page.evaluate("plot => plot === report.views.get('loss').plot", plot)  # updated, not built again
        assert page.evaluate("(({ min, max }) => [min, max])(report.views.get('loss').plot.scales.x)") == [0, 150]
        assert page.evaluate("report.views.get('loss').plot.series[2].show") is False
        assert "30\nof 300" in page.locator("#summary").inner_text()
        # A chart that was not there before comes without a reload.
        run.evaluate(30)
        run.end(30)
        expect(page.locator("#block-validation-loss canvas")).to_be_visible()
        expect(page.locator(".status")).to_have_text("stopped")
        assert page.evaluate("(({ min, max }) => [min, max])(report.views.get('loss').plot.scales.x)") == [0, 150]
        assert page.evaluate("report.views.get('loss').plot.series[2].show") is False
        assert complaints == []
        page.close()


def test_only_two_paths_are_answered_and_nothing_of_the_disk(run: WrittenRun) -> None:
    with served(run.folder) as server:
        status, headers, body = ask(server, "/data.json")
        assert status == 200
        assert json.loads(body)["title"] == "made"
        assert ask(server, "/data.json", If_None_Match=headers["ETag"])[0] == 304
        run.take(20, 21)
        assert ask(server, "/data.json", If_None_Match=headers["ETag"])[0] == 200
        for path in ("/events.jsonl", "/../../../../etc/passwd", "/%2e%2e/config.toml", "//etc/passwd", "/data.json?x"):
            assert ask(server, path)[::2] == (404, b"only / and /data.json are served\n"), path


def test_a_run_whose_files_are_gone_for_a_while_is_said_so(run: WrittenRun, capfd: pytest.CaptureFixture[str]) -> None:
    with served(run.folder) as server:
        plan = (run.folder / "plan.json").read_text()
        (run.folder / "plan.json").write_text("{")
        code, _, said = ask(server, "/data.json")
        assert code == 503
        assert said.decode().startswith(f"{run.folder / 'plan.json'}: is not what a run writes: ")
        (run.folder / "plan.json").write_text(plan)
        assert ask(server, "/data.json")[0] == 200
        with socket.create_connection(("127.0.0.1", server.server_port)) as gone:  # a tab that is closed at once
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            gone.sendall(b"GET / HTTP/1.1\r\nHost: localhost:%d\r\n\r\n" % server.server_port)
        assert ask(server, "/data.json")[0] == 200
    assert capfd.readouterr().err == ""


def test_other_hosts_are_refused(run: WrittenRun) -> None:
    with served(run.folder) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert ask(server, "/", Host=f"localhost:{server.server_port}")[0] == 200
        for host in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1", ""):
            status, _, body = ask(server, "/data.json", Host=host)
            assert (status, body) == (403, f"ask for {server.url}\n".encode()), host


def test_a_port_that_is_taken_is_named(run: WrittenRun) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UsageError) as caught:
            RunServer(run.folder, port)
    assert str(caught.value) == (
        f"watch: port {port} cannot be opened: Address already in use. Give another: --port {port + 1}."
    )


def test_ctrl_c_ends_it_in_peace(run: WrittenRun) -> None:
    command = [sys.executable, "-m", "trivium", "watch", str(run.folder), "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith(f"/ shows {run.folder}; Ctrl-C ends it.\n")
        process.send_signal(signal.SIGINT)
        try:
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, errors) == (0, "")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder of runs: a finished one, a fork of it that is stopped, one that failed, a damaged one, no run."""
    folder = tmp_path / "runs"
    base = WrittenRun(folder / "base", name="base")
    base.start()
    base.take(0, 40)
    base.evaluate(20)
    base.evaluate(40)
    base.end(300)
    fork = WrittenRun(folder / "a-fork", name="a-fork", seed=2)
    (fork.folder / "lineage.json").write_text(json.dumps({"run": "runs/base", "step": 20}))
    fork.start(20)
    fork.take(20, 30)
    fork.end(30)
    failed = WrittenRun(folder / "failed", name="failed")
    failed.start()
    failed.take(0, 3)
    failed.tell(Failed(step=3, why=BREAKS_OUT))
    damaged = folder / "damaged"
    damaged.mkdir()
    (damaged / "plan.json").write_text("{")
    (damaged / "events.jsonl").write_bytes(b'\x00\xff{"event": "step"\n[1]\n{"event": "started", "step": -1}\n')
    (folder / "no run").mkdir()
    return folder


def test_all_runs_of_a_folder_are_listed_as_a_tree(runs: Path) -> None:
    with served(runs) as server:
        _, headers, body = ask(server, "/data.json")
        listing = json.loads(body)["listing"]
        shown = [(run["name"], run["depth"], run["state"], run["step"]) for run in listing["runs"]]
        assert shown == [
            ("base", 0, "finished", 300),
            ("a-fork", 1, "stopped", 30),
            ("damaged", 0, "new", 0),
            ("failed", 0, "failed", 3),
        ]
        best = listing["runs"][0]
        assert (best["best_step"], best["total_steps"]) == (40, 300)
        assert listing["runs"][1]["forked"] == "runs/base at 20"
        assert json.loads(body)["runs"] == []
        assert ask(server, "/data.json", If_None_Match=headers["ETag"])[0] == 304


def test_chosen_runs_are_laid_over_one_another_and_a_damaged_one_is_said_so(runs: Path) -> None:
    with served(runs) as server:
        _, _, body = ask(server, "/data.json?run=base&run=a-fork&run=damaged&run=gone")
        data = json.loads(body)
        assert [run["label"] for run in data["runs"]] == ["base", "a-fork"]
        assert data["listing"]["chosen"] == ["base", "a-fork", "damaged"]
        first, second = data["listing"]["problems"]
        assert first.startswith(f"{runs / 'damaged' / 'plan.json'}: is not what a run writes: ")
        assert second == f"gone: is not a run of {runs}."
        labels = [series["label"] for series in charts_of(data)["loss"]["series"]]
        assert labels == ["loss, base", "running mean, base", "loss, a-fork", "running mean, a-fork"]


def test_a_name_never_becomes_a_path(runs: Path) -> None:
    with served(runs) as server:
        for query in ("run=../runs/base", "run=%2e%2e%2fruns%2fbase", f"run={runs / 'base'}", "run=no+run", "run=."):
            data = json.loads(ask(server, f"/data.json?{query}")[2])
            assert data["runs"] == [], query
            assert len(data["listing"]["problems"]) == 1, query
        for query in ("x=base", "run", "run=base&x=1", "&".join(["run=base"] * 9)):
            assert ask(server, f"/data.json?{query}")[0] == 404, query


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        RunServer(tmp_path, 0)
    assert str(caught.value) == f"{tmp_path}: has no runs. Give a run's folder, or the one that run.folder names."
    with pytest.raises(UsageError, match=r"gone: has no plan.json. Give a run's folder, such as runs/small."):
        RunServer(tmp_path / "gone", 0)


def test_hundreds_of_runs_are_read_once(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        shutil.copytree(runs / "base", runs / f"copy-{number}")
    parsed: list[bytes] = []

    def counted(line: bytes) -> dict[str, Any] | None:
        parsed.append(line)
        return parse_event(line)

    monkeypatch.setattr(glance, "parse_event", counted)
    followed = Followed(runs)
    first = followed.now()
    assert len(first.data["listing"]["runs"]) == 304
    assert 0 < len(parsed) < 304 * 12  # not one for each of 40 steps
    parsed.clear()
    assert followed.now() is first
    assert parsed == []


@pytest.mark.slow
def test_runs_are_chosen_in_the_list_and_drawn_below_it(runs: Path, browser: Browser) -> None:
    with served(runs) as server:
        page = browser.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(server.url)
        names = page.locator(".runs tbody a").all_inner_texts()
        assert names == ["base", "a-fork", "damaged", "failed"]
        assert page.locator("canvas").count() == 0
        assert page.locator(".runs .status.failed").get_attribute("title") == BREAKS_OUT
        page.get_by_label("Show base", exact=True).check()
        expect(page.locator("#block-loss canvas")).to_be_visible()
        page.get_by_label("Show a-fork", exact=True).check()
        until(page, "report.views.get('loss')?.chart.series.length === 4")
        assert page.url.endswith("/?run=base&run=a-fork")
        page.get_by_label("Filter runs").fill("stop")
        assert page.locator(".runs tbody a").all_inner_texts() == ["a-fork"]
        page.wait_for_timeout(300)  # news come, and leave what is typed
        assert page.get_by_label("Filter runs").input_value() == "stop"
        assert page.locator(".runs tbody a").all_inner_texts() == ["a-fork"]
        page.reload()  # the address has what was chosen
        until(page, "report.views.get('loss')?.chart.series.length === 4")
        page.locator(".runs tbody a", has_text="failed").click()
        until(page, "report.data.runs.length === 1 && report.data.runs[0].label === 'failed'")
        page.get_by_role("button", name="show none").click()
        until(page, "report.data.runs.length === 0")
        assert page.locator("canvas").count() == 0
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        assert complaints == []
        page.close()
