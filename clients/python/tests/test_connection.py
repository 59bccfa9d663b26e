"""Connections: who asks, over what, and what an error says."""

from __future__ import annotations

import os
import pathlib
import random
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest
from daemon import BIN, Daemon

from gnomon import ApiError, ConfigError, ConnectionFailed
from gnomon.connection import Backoff, ClientOptions, Connection, asked_pause, read_token


def test_an_answer_is_taken_and_the_connection_kept(daemon: Daemon) -> None:
    connection = Connection(ClientOptions(url=daemon.url))
    assert connection.request("GET", "/livez").status < 300
    kept = connection._http
    connection.request("GET", "/livez")
    assert connection._http is kept is not None


def test_a_problem_document_becomes_title_detail_and_accepted(daemon: Daemon) -> None:
    connection = Connection(ClientOptions(url=daemon.url))
    with pytest.raises(ApiError) as raised:
        connection.request("POST", "/v1/runs", '{"name":"x","colour":1}')
    error = raised.value
    assert error.status == 400
    assert error.title
    assert "job_id" in str(error)
    assert not error.may_pass
    with pytest.raises(ApiError, match="404 Unknown run"):
        connection.request("GET", "/v1/runs/7")


def test_a_connection_that_was_closed_is_made_again(daemon: Daemon) -> None:
    connection = Connection(ClientOptions(url=daemon.url))
    connection.request("GET", "/livez")
    daemon.kill()
    daemon.start()
    connection.request("GET", "/livez")


def test_a_controller_that_is_away_is_one_error_with_its_place(daemon: Daemon) -> None:
    daemon.kill()
    connection = Connection(ClientOptions(url=daemon.url))
    said = rf"no answer from the controller at {daemon.url} \(GET /v1/runs\): .*refused"
    with pytest.raises(ConnectionFailed, match=said):
        connection.request("GET", "/v1/runs?secret=1")


def test_a_long_poll_is_cancelled_from_another_thread(daemon: Daemon) -> None:
    connection = Connection(ClientOptions(url=daemon.url))
    threading.Timer(0.3, connection.cancel).start()
    begun = time.monotonic()
    fingerprint = (
        '{"device":"x","backend":"cpu","libraries":"x","build":"x","world_size":1,"threads":1}'
    )
    body = f'{{"verifier":"v","fingerprint":{fingerprint}}}'
    with pytest.raises(ConnectionFailed):
        connection.request("POST", "/v1/leases?wait=30s", body, 40)
    assert time.monotonic() - begun < 5
    connection.request("GET", "/livez")


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (ClientOptions(url="nowhere"), "url: 'nowhere' not accepted"),
        (ClientOptions(url="http://h:99999"), "url"),
        (ClientOptions(url="http://h/path"), "url"),
        (ClientOptions(url="http://me:pass@h"), r"\(not shown\).* a URL without a user"),
        (ClientOptions(url="http://far:1", token="t"), "a token is not sent in the clear"),
        (ClientOptions(url="https://h", certificate_file="c"), "what goes with certificate_file"),
        (ClientOptions(url="https://h", ca_file="/none"), "ca_file: /none .*PEM"),
        (ClientOptions(url="http://localhost", token="a b"), r"token: \(not shown\)"),
        (ClientOptions(url="http://localhost", token_file="/none"), "token_file: /none"),
    ],
)
def test_what_is_named_wrong_is_said_before_anything_starts(
    options: ClientOptions, wrong: str
) -> None:
    with pytest.raises(ConfigError, match=wrong) as raised:
        Connection(options)
    assert "pass" not in str(raised.value)


def test_the_environment_fills_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNOMON_URL", "https://there:1")
    monkeypatch.setenv("GNOMON_TOKEN", "secret")
    monkeypatch.setenv("GNOMON_CA_FILE", "/ca")
    options = ClientOptions().with_environment()
    assert (options.url, options.token, options.ca_file) == ("https://there:1", "secret", "/ca")
    monkeypatch.setenv("GNOMON_TOKEN_FILE", "/token")
    options = ClientOptions(url="http://here").with_environment()
    assert (options.url, options.token, options.token_file) == ("http://here", "", "/token")
    assert "secret" not in repr(ClientOptions(token="secret"))


def test_a_token_s_file_is_its_first_line_and_a_pipe_is_read_once(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\r\nsecond\n")
    assert read_token(ClientOptions(token_file=str(file))) == "first"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_text, args=("piped\n",)).start()
    options = ClientOptions(token_file=str(pipe))
    assert [read_token(options), read_token(options)] == ["piped", "piped"]


def test_a_token_that_is_being_replaced_is_a_failure_that_passes(
    daemon: Daemon, tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    connection = Connection(ClientOptions(url=daemon.url, token_file=str(file)))
    for broken in (file.unlink, lambda: file.write_text("")):
        broken()
        for each in (connection, connection.another()):
            with pytest.raises(ConnectionFailed, match="token_file: "):
                each.request("GET", "/livez")
    file.write_text("second\n")
    for each in (connection, connection.another()):
        each.request("GET", "/livez")
        assert each._token == "second"


def test_waiting_times_double_and_obey_what_was_asked() -> None:
    backoff = Backoff(0.1, 1.0)
    for bound in (0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert bound / 2 <= backoff.next() <= bound
    assert 30 <= backoff.next(30) <= 37.5
    backoff.reset()
    assert backoff.next() <= 0.1
    assert asked_pause(ApiError(503, "busy", retry_after=600)) == 60


def test_waiting_leaves_the_program_s_random_numbers_alone() -> None:
    before = random.getstate()
    Backoff().next()
    assert random.getstate() == before


@pytest.fixture
def guarded(tmp_path: pathlib.Path) -> Iterator[tuple[Daemon, pathlib.Path]]:
    """A daemon in TLS that wants tokens, with the folder of its files."""
    if not (BIN / "gnomond").exists():
        pytest.skip(f"there is no gnomond in {BIN}: build it, or set GNOMON_BIN")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-keyout", tmp_path / "key.pem", "-out", tmp_path / "cert.pem"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    made = subprocess.run(
        [BIN / "gnomon", "token", "create", "me", "--role", "trainer", "--file", tmp_path / "t"],
        capture_output=True,
        text=True,
        check=True,
    )
    (tmp_path / "token").write_text(made.stdout.split()[-1] + "\n")
    config = (
        f'[tls]\ncertificate = "{tmp_path}/cert.pem"\nkey = "{tmp_path}/key.pem"\n'
        f'[auth]\ntokens = "{tmp_path}/t"\n'
    )
    its = Daemon(tmp_path, config=config)
    yield its, tmp_path
    its.kill()
    print((tmp_path / "gnomond.log").read_text())


def test_tls_and_a_token_are_those_of_the_cpp_client(
    guarded: tuple[Daemon, pathlib.Path],
) -> None:
    daemon, folder = guarded
    url = f"https://localhost:{daemon.port}"
    with pytest.raises(ConnectionFailed, match=r"self.signed certificate.*GNOMON_CA_FILE"):
        Connection(ClientOptions(url=url)).request("GET", "/livez")
    trusted = {"url": url, "ca_file": str(folder / "cert.pem")}
    with pytest.raises(ApiError, match=r"401 .*GNOMON_TOKEN_FILE"):
        Connection(ClientOptions(**trusted)).request("GET", "/v1/runs")
    wrong_name = ClientOptions(url=f"https://127.0.0.1:{daemon.port}", ca_file=trusted["ca_file"])
    with pytest.raises(ConnectionFailed, match="use a URL with one of the names"):
        Connection(wrong_name).request("GET", "/livez")

    token = folder / "token"
    secret = token.read_text()
    token.write_text("not-this-one\n")
    connection = Connection(ClientOptions(**trusted, token_file=str(token)))
    with pytest.raises(ApiError) as raised:
        connection.request("GET", "/v1/runs")
    assert raised.value.refuses_token
    token.write_text(secret)
    assert connection.request("GET", "/v1/runs").status == 200, "a replaced token is read anew"
    plain = Connection(ClientOptions(url=f"http://localhost:{daemon.port}"))
    with pytest.raises((ConnectionFailed, ApiError)):
        plain.request("GET", "/livez")
