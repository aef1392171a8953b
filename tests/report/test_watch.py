"""A run is shown while it trains, to this machine alone."""

import http.client
import json
import os
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
from tests.support.runs import WrittenRun
from trivium.errors import UsageError
from trivium.report.watch import RunServer


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
