"""One keep-alive HTTP connection to gnomond, for one thread.

Options that are not given come from the environment, as those of the C++ programs do: GNOMON_URL,
GNOMON_TOKEN_FILE or else GNOMON_TOKEN, GNOMON_CA_FILE, GNOMON_CERTIFICATE_FILE, GNOMON_KEY_FILE.
Tokens and certificates are read anew before each connection, since they are replaced while a run
goes on.
"""

from __future__ import annotations

import contextlib
import copy
import http.client
import ipaddress
import json
import os
import random
import socket
import ssl
import stat
import threading
import urllib.parse
from dataclasses import dataclass, replace

from gnomon.errors import ApiError, ConfigError, ConnectionFailed, GnomonError

ANSWER_BYTES_MAX = 256 << 20
_TOKEN_MAX = 4096
_PAUSE_MAX_SECONDS = 60.0
_SHOWN_MAX = 300

# What to do about an error in the words of OpenSSL.
_ADVICE = {
    "self-signed certificate": "its authority is not trusted here: name that as GNOMON_CA_FILE",
    "self signed certificate": "its authority is not trusted here: name that as GNOMON_CA_FILE",
    "issuer certificate": "its authority is not trusted here: name that as GNOMON_CA_FILE",
    "certificate has expired": "renew it where gnomond runs, or set this machine's clock",
    "not valid for": "use a URL with one of the names in its certificate",
    "doesn't match": "use a URL with one of the names in its certificate",
    "mismatch": "use a URL with one of the names in its certificate",
    "WRONG_VERSION_NUMBER": "it does not speak TLS there: is it http:// instead of https://?",
    "wrong version number": "it does not speak TLS there: is it http:// instead of https://?",
    "alert certificate required": "name a certificate: GNOMON_CERTIFICATE_FILE, GNOMON_KEY_FILE",
    "CERTIFICATE_REQUIRED": "name a certificate: GNOMON_CERTIFICATE_FILE, GNOMON_KEY_FILE",
}


@dataclass(frozen=True)
class ClientOptions:
    """Where gnomond is and who asks. All files are PEM, but for `token_file` (its first line)."""

    url: str = ""
    token_file: str = ""
    token: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""

    def __repr__(self) -> str:
        return f"ClientOptions(url={self.url!r})"  # never the token

    def with_environment(self) -> ClientOptions:
        """These options, and what they leave open from the environment."""

        def variable(name: str) -> str:
            return os.environ.get(name, "")

        options = replace(self, url=self.url or variable("GNOMON_URL") or "http://127.0.0.1:7717")
        if not options.token and not options.token_file:
            options = replace(options, token_file=variable("GNOMON_TOKEN_FILE"))
            if not options.token_file:
                options = replace(options, token=variable("GNOMON_TOKEN"))
        if not options.ca_file:
            options = replace(options, ca_file=variable("GNOMON_CA_FILE"))
        if not options.certificate_file and not options.key_file:
            options = replace(
                options,
                certificate_file=variable("GNOMON_CERTIFICATE_FILE"),
                key_file=variable("GNOMON_KEY_FILE"),
            )
        return options


@dataclass(frozen=True)
class Answer:
    """A status below 400 and its body."""

    status: int
    body: bytes


# Not the program's generator: a step may draw from that.
_random = random.Random()


class Backoff:
    """Waiting times that double up to `longest`, with jitter. Units are seconds."""

    def __init__(self, first: float = 0.1, longest: float = 10.0) -> None:
        self._first = first
        self._longest = longest
        self._bound = first

    def next(self, asked: float = 0.0) -> float:
        """The next time to wait: at least half of the bound, and at least `asked`."""
        bound = self._bound
        self._bound = min(self._bound * 2, self._longest)
        return max(_random.uniform(bound / 2, bound), _random.uniform(asked, asked * 1.25))

    def reset(self) -> None:
        self._bound = self._first


def asked_pause(error: Exception) -> float:
    """Seconds for which the controller wants nothing more, at most a minute."""
    return min(error.retry_after, _PAUSE_MAX_SECONDS) if isinstance(error, ApiError) else 0.0


class Connection:
    """Not for two threads at once, but for `cancel`. Raises ConfigError for what is named wrong."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._secure, self._host, self._port = _origin(options)
        if self._secure:
            _tls_context(options)
        self._http: http.client.HTTPConnection | None = None
        self._token = ""
        self._cancelled = threading.Event()

    @property
    def url(self) -> str:
        return self._options.url

    def another(self) -> Connection:
        """One more to the same place, for another thread. It raises nothing: a token that cannot
        be read now, since it is being replaced, fails a request.
        """
        its = copy.copy(self)
        its._http, its._token, its._cancelled = None, "", threading.Event()
        return its

    def request(
        self, method: str, target: str, body: str | bytes | None = None, timeout: float = 10.0
    ) -> Answer:
        """One request. Raises ApiError for a status from 400 on, and ConnectionFailed."""
        status, headers, content = self._exchange(method, target, body, timeout)
        if status in (401, 403):
            self.close()  # the next request reads the token anew
        if status >= 400:
            raise _api_error(method, target, status, headers, content)
        return Answer(status, content)

    def cancel(self) -> None:
        """From any thread: the request in flight, or else the next one, fails at once."""
        self._cancelled.set()
        connection = self._http
        sock = connection.sock if connection is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def _exchange(
        self, method: str, target: str, body: str | bytes | None, timeout: float
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        reused = self._http is not None
        while True:
            if self._cancelled.is_set():
                self._cancelled.clear()
                self.close()
                raise ConnectionFailed("cancelled")
            try:
                return self._try_once(method, target, body, timeout)
            except GnomonError:
                self.close()
                raise
            except (OSError, http.client.HTTPException, ssl.SSLError) as error:
                self.close()
                # A connection that was kept alive may have been closed since.
                if reused and isinstance(error, ConnectionError | http.client.HTTPException):
                    reused = False
                    continue
                self._cancelled.clear()
                raise ConnectionFailed(self._failure(method, target, error)) from None

    def _try_once(
        self, method: str, target: str, body: str | bytes | None, timeout: float
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        if self._http is None:
            try:
                self._token = read_token(self._options)
                self._http = self._connection(timeout)
            except ConfigError as error:
                # It was accepted once: somebody is replacing a file.
                raise ConnectionFailed(self._failure(method, target, error)) from None
            self._http.connect()
            self._http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._http.sock.settimeout(timeout)
        headers = {"User-Agent": "gnomon-client", "Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        data = body.encode() if isinstance(body, str) else body
        if data is not None:
            headers["Content-Type"] = "application/json"
        self._http.request(method, target, data, headers)
        answer = self._http.getresponse()
        content = answer.read(ANSWER_BYTES_MAX + 1)
        if len(content) > ANSWER_BYTES_MAX:
            raise ConnectionFailed(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        if answer.will_close:
            self.close()
        return answer.status, answer.headers, content

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout)
        context = _tls_context(self._options)
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout, context=context)

    def _failure(self, method: str, target: str, error: Exception) -> str:
        words = str(error) or type(error).__name__
        advice = next((text for part, text in _ADVICE.items() if part in words), "")
        path = target.split("?", 1)[0]
        return (
            f"no answer from the controller at {self._options.url} ({method} {path}): {words}"
            + (f"; {advice}" if advice else "")
        )


_pipes: dict[str, str] = {}
_pipes_lock = threading.Lock()


def read_token(options: ClientOptions) -> str:
    """The token as it is now, or empty. Raises ConfigError, which never shows the token."""
    accepted = f"a token: 1 to {_TOKEN_MAX} visible characters of ASCII without spaces"
    if not options.token_file:
        if options.token and not _is_token(options.token):
            raise ConfigError("token", "(not shown)", accepted)
        return options.token
    try:
        text = _read_named(options.token_file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "token_file", options.token_file, f"a file that can be read ({error})"
        ) from None
    token = text.split("\n", 1)[0].removesuffix("\r")
    if not _is_token(token):
        raise ConfigError(
            "token_file", options.token_file, "a file whose first line is " + accepted
        )
    return token


def _read_named(path: str) -> str:
    """A pipe (a shell's <(command)) can be read once, and each connection asks for the token."""
    with _pipes_lock:
        if path in _pipes:
            return _pipes[path]
        with open(path, encoding="ascii") as file:
            text = file.read(_TOKEN_MAX * 2)
        if stat.S_ISFIFO(os.stat(path).st_mode):
            _pipes[path] = text
        return text


def _is_token(text: str) -> bool:
    return 0 < len(text) <= _TOKEN_MAX and all(" " < letter < "\x7f" for letter in text)


def _origin(options: ClientOptions) -> tuple[bool, str, int]:
    """Whether it is TLS, the host and the port."""
    accepted = 'a URL like "http://127.0.0.1:7717" or "https://HOST:PORT"'
    if "@" in options.url:
        raise ConfigError("url", "(not shown)", "a URL without a user: a token says who asks")
    try:
        parts = urllib.parse.urlsplit(options.url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise ConfigError("url", repr(options.url), accepted) from None
    plain = parts.path in ("", "/") and not parts.query and not parts.fragment
    if parts.scheme not in ("http", "https") or not host or not plain:
        raise ConfigError("url", repr(options.url), accepted)
    secure = parts.scheme == "https"
    if read_token(options) and not secure and not _is_loopback(host):
        accepted = "an https:// URL: a token is not sent in the clear to another machine"
        raise ConfigError("url", repr(options.url), accepted)
    if bool(options.certificate_file) != bool(options.key_file):
        key, other = ("key_file", "certificate_file")
        if options.key_file:
            key, other = other, key
        raise ConfigError(key, "nothing", f"what goes with {other}")
    return secure, host, port or (443 if secure else 80)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tls_context(options: ClientOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.ca_file or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            "ca_file", options.ca_file, f"a PEM file of certificates ({error})"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.certificate_file:
        try:
            context.load_cert_chain(options.certificate_file, options.key_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                "certificate_file",
                options.certificate_file,
                f"a PEM certificate that goes with {options.key_file} ({error})",
            ) from None
    return context


def _api_error(
    method: str, target: str, status: int, headers: http.client.HTTPMessage, content: bytes
) -> ApiError:
    title = detail = accepted = ""
    try:
        problem = json.loads(content)
        if isinstance(problem, dict):
            title = str(problem.get("title", ""))
            detail = str(problem.get("detail", ""))
            accepted = str(problem.get("accepted", ""))
    except ValueError:
        pass  # something else than gnomond answered
    words = ": ".join(part for part in (title, detail) if part)
    words += f" (accepted: {accepted})" if accepted else ""
    words = words or content[:_SHOWN_MAX].decode(errors="replace")
    if status in (401, 403):
        words += "; GNOMON_TOKEN_FILE names a token's file, or GNOMON_TOKEN is the token"
    try:
        retry_after = max(0.0, float(headers.get("Retry-After", "0")))
    except ValueError:
        retry_after = 0.0
    path = target.split("?", 1)[0]
    message = f"{method} {path}: {status} {words}"
    return ApiError(status, message, title, detail, accepted, retry_after)
