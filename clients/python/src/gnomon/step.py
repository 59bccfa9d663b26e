"""One step of a run: what the loop logs, and the report that a thread makes of it."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gnomon.batch import batch_hash, capture_batch
from gnomon.errors import GnomonError
from gnomon.json_record import number_to_json
from gnomon.outbox import QUEUE_MAX, Report
from gnomon.spool import STEPS

if TYPE_CHECKING:
    from gnomon.run import Run

# With more steps than this behind it, the reporting thread gets no more batches to hash.
_BATCHES_KEPT_MAX = 1_000
_NUMBERS = (int, float)


class Step:
    """A step, as `with run.step() as s` gives it.

    step: 1, 2, ... of the run. What a step was not given are the class's values: to begin one
    has to cost next to nothing.
    """

    step = 0
    attempt = 0
    plan_version = 0
    seconds = 0.0
    time = 0.0
    _loss: Any = None
    _grad_norm: Any = None
    _learning_rate: Any = None
    _tokens: int | None = None
    _weights_hash: str | None = None

    def __init__(self, run: Run, batch: Any) -> None:
        self._run = run
        self._batch = batch

    def log(
        self,
        *,
        loss: Any = None,
        grad_norm: Any = None,
        learning_rate: Any = None,
        tokens: int | None = None,
        weights_hash: str | None = None,
    ) -> None:
        """Keeps what is given; it may be called again with other members.

        loss: mean over the step's tokens before the update, nats per token. grad_norm: before
        clipping. Both may be tensors of one element: they are read by a thread later, so nothing
        may change them in place. weights_hash: of all weights after the update.
        """
        if loss is not None:
            self._loss = loss if type(loss) is float else self._run.capture(loss)
        if grad_norm is not None:
            self._grad_norm = (
                grad_norm if type(grad_norm) is float else self._run.capture(grad_norm)
            )
        if learning_rate is not None:
            self._learning_rate = learning_rate
        if tokens is not None:
            self._tokens = tokens
        if weights_hash is not None:
            self._weights_hash = weights_hash

    def batch(self, batch: Any) -> None:
        """Has `batch` hashed, where `run.step(batch=...)` could not have it yet."""
        self._batch = capture_batch(batch) if len(self._run._queue) < _BATCHES_KEPT_MAX else None

    # What follows is in the loop's way: it has few calls, and nothing of it does I/O unless a
    # decision is to be carried out.
    def __enter__(self) -> Step:
        run = self._run
        batch = self._batch
        if run._attention:
            run._boundary(batch is not None)
        run._newest = self.step = run._newest + 1
        run._inside = True
        self.attempt = run._attempt
        self.plan_version = run._version
        if batch is not None and type(batch) is not bytes:
            self.batch(batch)
        self._begun = time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        run = self._run
        run._inside = False
        if kind is not None or self._loss is None or run._held or len(run._queue) >= QUEUE_MAX:
            return run._leave_slowly(self, self._loss is not None, kind is None)
        self.seconds = time.perf_counter() - self._begun
        self.time = time.time()
        run._train_seconds += self.seconds
        if run._lead is not None:
            run._queue.append(self)

    def _skip(self) -> None:
        """Ends a step that has no loss: its number is used, and a notice says that its report is
        missing. A loss of NaN would be taken for damage.
        """
        self._run._inside = False
        if self._run._lead is not None:
            self._run._lead.outbox.overflow(self)


def capture(value: Any) -> Any:
    """Keeps a value for later: a tensor without its graph, anything else as a number."""
    return value.detach() if hasattr(value, "detach") else float(value)


def report_of(step: Step) -> Report:
    """The report of a step. Reads tensors and hashes the batch. Raises GnomonError."""
    read = step._run.read
    parts = [
        f'"attempt":{step.attempt},"step":{step.step},"plan_version":{step.plan_version}',
        f'"loss":{_json(step._loss, read, "loss")}',
        f'"step_seconds":{step.seconds:.6f},"time":{step.time:.6f}',
    ]
    if step._grad_norm is not None:
        parts.append(f'"grad_norm":{_json(step._grad_norm, read, "grad_norm")}')
    if step._learning_rate is not None:
        parts.append(f'"learning_rate":{_json(step._learning_rate, read, "learning_rate")}')
    if step._tokens is not None:
        parts.append(f'"tokens":{int(step._tokens)}')
    if step._weights_hash:
        parts.append(f'"weights_hash":"{_hash(step._weights_hash)}"')
    if step._batch is not None:
        parts.append(f'"batch_hash":"{batch_hash(step._batch)}"')
        step._batch = None
    return Report(STEPS, "{" + ",".join(parts) + "}", step.attempt, step.step)


def _json(value: Any, read: Any, name: str) -> str:
    if type(value) not in _NUMBERS:
        try:
            value = float(read(value))
        except Exception as error:
            raise GnomonError(f"{name} is no number ({error})") from None
    number = number_to_json(float(value))
    return repr(number) if isinstance(number, float) else f'"{number}"'


def _hash(text: str) -> str:
    if len(text) > 128 or not all("!" <= each <= "~" and each not in '"\\' for each in text):
        raise GnomonError(f"weights_hash {text[:40]!r} is not 1 to 128 visible ASCII characters")
    return text
