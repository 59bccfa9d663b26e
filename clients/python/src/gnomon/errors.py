"""What this client raises. Each message says what was wrong, the value, and what is accepted."""

from __future__ import annotations

# A request that has met so many errors of the server (5xx) that do not pass by themselves is given
# up.
SERVER_ERRORS_MAX = 20


class GnomonError(Exception):
    """The family of all errors of this client that a user can cause or must know of."""


class ConfigError(GnomonError):
    """An argument, a file or an environment variable cannot be accepted. Nothing was started."""

    def __init__(self, key: str, value: str, accepted: str) -> None:
        self.key = key
        self.value = value
        self.accepted = accepted
        super().__init__(f"{key}: {value} not accepted; expected {accepted}")


class ConnectionFailed(GnomonError):
    """The controller could not be reached or gave no answer. The request may have been done."""


class ApiError(GnomonError):
    """The controller answered with a problem document (RFC 9457), or another error.

    `title` is empty where the answer was no problem document, and so not gnomond's word.
    """

    def __init__(
        self,
        status: int,
        message: str,
        title: str = "",
        detail: str = "",
        accepted: str = "",
        retry_after: float = 0.0,
    ) -> None:
        self.status = status
        self.title = title
        self.detail = detail
        self.accepted = accepted
        self.retry_after = retry_after
        super().__init__(message)

    @property
    def may_pass(self) -> bool:
        """Whether the same request may be taken later: a busy or full controller, or a token."""
        return self.status in (401, 403, 408, 429, 502, 503, 504, 507)

    @property
    def refuses_token(self) -> bool:
        """Whether it is the token, or its absence, that is not accepted."""
        return self.status in (401, 403)

    @property
    def is_replaced(self) -> bool:
        """Whether another trainer has taken the run over: this process has to end."""
        return self.status == 409 and self.title == "Another trainer has taken over"


class Rejected(GnomonError):
    """Raise it in `on_plan` or `on_rollback` to reject a directive; the reason goes to people."""


class RanksDisagree(GnomonError):
    """Two ranks have different plans, or one rejects what rank 0 has accepted."""


class Replaced(GnomonError):
    """Another trainer has this run now. Nothing more is reported; the process has to end."""


class RolledBack(GnomonError):
    """The run was rolled back while `run.step(batch=...)` was given a batch of another step.

    `on_rollback` has loaded the checkpoint already. The loop goes on with the batch of
    `to_step + 1`.
    """

    def __init__(self, to_step: int) -> None:
        self.to_step = to_step
        super().__init__(
            f"the run was rolled back to step {to_step}: go on with the batch of step {to_step + 1}"
        )


class RestartRequired(SystemExit):
    """A directive takes effect at a restart. Uncaught, the process ends with status 75.

    The next `gnomon.init` of the same directory and name has `run.resume_from`.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(75)

    def __str__(self) -> str:
        return f"restart this trainer: {self.reason}"


class Stopped(SystemExit):
    """The controller, or a person through it, stopped the run. Uncaught, the status is 0."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(0)

    def __str__(self) -> str:
        return f"the run was stopped: {self.reason}"
