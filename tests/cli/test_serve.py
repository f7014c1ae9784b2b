"""`cerebras-tf serve` and `cerebras-tf credentials`; serving itself is tested in tests/address."""

from __future__ import annotations

import os
import urllib.error
import urllib.request

import pytest

pytest.importorskip("grpc")
pytest.importorskip("cryptography")

from cerebras_tf.address.status import page_of, serve_page
from modelzoo.commands.main import main
from tests.address.conftest import files, serve  # noqa: F401  # fixtures
from tests.messages import names

STATUS = {
    "version": "1.0",
    "host": "<b>",
    "holder": "ann & co",
    "held_s": 3.2,
    "connected": True,
    "waiting": ["bob"],
    "free_bytes": 10**9,
    "threads": 2,
    "steps": 3,
    "steps_per_s": 12.5,
    "losses": [(1, 3.0), (2, float("nan")), (3, 2.0)],
    "held_bytes": 10**6,
    "programs": 1,
}


def test_credentials_are_made_for_both_sides(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["credentials", "new", "--output", "lab.pem"]) == 0
    out = capsys.readouterr().out
    assert "lab-server.pem: for the server" in out and "lab.pem: for clients" in out
    assert sorted(os.listdir()) == ["lab-server.pem", "lab.pem"]
    assert main(["credentials", "new", "--output", "lab.pem"]) == 2
    assert names(capsys.readouterr().err, "lab.pem", "not replaced")


def test_the_status_of_a_server_is_shown(serve, files, capsys):  # noqa: F811
    where = ["--listen", f"127.0.0.1:{serve().port}", "--credentials_path", str(files[0])]
    assert main(["serve", "--status", *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "free" and "of memory free" in lines[-1]


@pytest.mark.parametrize(
    "arguments,text",
    [
        (["--listen", "here:"], "HOST:PORT"),
        (["--listen", "203.0.113.1:9"], "an address of this computer"),
    ],
)
def test_a_wrong_address_is_refused(files, capsys, arguments, text):  # noqa: F811
    assert main(["serve", *arguments, "--credentials_path", str(files[1])]) == 2
    assert names(capsys.readouterr().err, "--listen", text)


def test_a_client_cannot_serve(files, capsys):  # noqa: F811
    assert main(["serve", "--credentials_path", str(files[0])]) == 2
    assert names(capsys.readouterr().err, "PRIVATE KEY")


def test_the_page_shows_the_status_and_runs_nothing():
    page = page_of(STATUS)
    assert (
        "ann &amp; co" in page
        and "3, 12.5 per second" in page
        and "&lt;b&gt;" in page
        and "<b>" not in page
    )
    assert '<polyline points="0.0,0.0 640.0,200.0"/>' in page and "loss 2 at step 3" in page
    assert "<svg" not in page_of({**STATUS, "holder": None, "losses": []})


def test_the_page_is_for_this_computer():
    server = serve_page(lambda: STATUS, 0)
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        with urllib.request.urlopen(f"{url}/", timeout=5) as answer:
            assert "ann &amp; co" in answer.read().decode()
        request = urllib.request.Request(f"{url}/", headers={"Host": "evil.example"})
        for other in (request, f"{url}/etc/passwd"):
            with pytest.raises(urllib.error.HTTPError):
                urllib.request.urlopen(other, timeout=5)
    finally:
        server.shutdown()
        server.server_close()
