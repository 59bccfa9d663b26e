"""Replays in a user's own code: `@gnomon.verifier` marks a function that `gnomon-verify` runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import overload

from gnomon.errors import GnomonError
from gnomon.plan import PrecisionPlan
from gnomon.records import Fingerprint, ReplayStep, SiteScoreRow
from gnomon.records import ReplayTask as TaskMessage


class Unsupported(GnomonError):
    """Raise it in a replay that this verifier cannot do. It costs the replay no attempt."""


class ReplayFailed(GnomonError):
    """A replay ended without a result that can be used: the reason goes to the controller."""


class LeaseLost(GnomonError):
    """`task.check()` raises it: somebody else has the replay now, so it has to end."""


@dataclass
class ReplayTask:
    """A window to replay: `steps` steps behind `start_step`, from `checkpoint`, in one arm.

    arm: "bf16" (every GEMM in BF16), "same" and "plan" (under `plan`), "fakequant" (FP8 values,
    BF16 GEMMs), "bf16-perturbed" (another order of summation), "eager" (as "same", without the
    compiler), "scores" (analysis of the sites).
    plan: of the arm; None where it is the one that the checkpoint was trained in.
    perturb: not 0: the weights are moved a little first, by noise of this seed.
    """

    run: str
    replay: int
    window: int
    attempt: int
    arm: str
    checkpoint: str
    start_step: int
    steps: int
    plan: PrecisionPlan | None = None
    purpose: str = ""
    end_checkpoint: str = ""
    evaluate_endpoints: bool = False
    perturb: int = 0
    perturb_scale: float = 0.0
    _check: Callable[[], None] = field(default=lambda: None, repr=False)
    _progress: Callable[[int], None] = field(default=lambda steps: None, repr=False)

    @property
    def first_step(self) -> int:
        """The first step to replay."""
        return self.start_step + 1

    @property
    def last_step(self) -> int:
        """The last step to replay."""
        return self.start_step + self.steps

    @staticmethod
    def of(
        message: TaskMessage,
        check: Callable[[], None] = lambda: None,
        progress: Callable[[int], None] = lambda steps: None,
    ) -> ReplayTask:
        """The task of a lease. Raises ConfigError for a plan that cannot be read."""
        return ReplayTask(
            run=message.run,
            replay=message.replay,
            window=message.window,
            attempt=message.attempt,
            arm=message.arm,
            checkpoint=message.checkpoint_uri,
            start_step=message.start_step,
            steps=message.steps,
            plan=PrecisionPlan.parse(message.plan, "plan of the arm") if message.plan else None,
            purpose=message.purpose or "",
            end_checkpoint=message.end_checkpoint_uri or "",
            evaluate_endpoints=bool(message.evaluate_endpoints),
            perturb=message.perturb or 0,
            perturb_scale=message.perturb_scale or 0.0,
            _check=check,
            _progress=progress,
        )

    def check(self) -> None:
        """Raises LeaseLost once the replay has to end. Call it between two steps."""
        self._check()

    def progress(self, steps_done: int) -> None:
        """Says how many steps are done; the next heartbeat carries it. Also does `check()`."""
        self._progress(steps_done)
        self._check()


@dataclass
class ReplayResult:
    """What a replay has shown. Losses are means in nats per token; None is not measured.

    steps: the window's steps in order, or the first of them up to one that is not finite.
    replay_end_loss_bf16: held-out loss, in BF16, of the weights behind the last step. It is
    always needed: without it a window cannot be judged.
    start_loss_bf16, start_loss_plan, run_end_loss_bf16: held-out losses of the checkpoint in BF16
    and under its plan, and of the end checkpoint in BF16; needed where `evaluate_endpoints`.
    gap_error: standard error of run_end_loss_bf16 - replay_end_loss_bf16, paired over sequences.
    replay_seconds, eval_seconds: spent in steps, and in evaluations and loading; without the
    first it is the time of the whole call.
    """

    steps: Sequence[ReplayStep]
    replay_end_loss_bf16: float | None = None
    start_loss_bf16: float | None = None
    start_loss_plan: float | None = None
    start_loss_fakequant: float | None = None
    run_end_loss_bf16: float | None = None
    gap_error: float | None = None
    heldout_tokens: int | None = None
    replay_seconds: float | None = None
    eval_seconds: float | None = None
    fingerprint: Fingerprint | None = None
    scores: Sequence[SiteScoreRow] = ()


ReplayFunction = Callable[[ReplayTask], ReplayResult]


@dataclass(frozen=True)
class Verifier:
    """A replay function with what it can do; empty means anything.

    exact_replay: the same task gives the same bits again, here and on every other verifier of an
    equal fingerprint.
    """

    function: ReplayFunction
    arms: tuple[str, ...] = ()
    checkpoint_formats: tuple[str, ...] = ()
    frameworks: tuple[str, ...] = ()
    fingerprint: Callable[[], Fingerprint] | None = None
    exact_replay: bool = False

    def __call__(self, task: ReplayTask) -> ReplayResult:
        return self.function(task)


@overload
def verifier(function: ReplayFunction) -> Verifier: ...
@overload
def verifier(
    *,
    arms: Sequence[str] = (),
    checkpoint_formats: Sequence[str] = (),
    frameworks: Sequence[str] = (),
    fingerprint: Callable[[], Fingerprint] | None = None,
    exact_replay: bool = False,
) -> Callable[[ReplayFunction], Verifier]: ...
def verifier(
    function: ReplayFunction | None = None,
    *,
    arms: Sequence[str] = (),
    checkpoint_formats: Sequence[str] = (),
    frameworks: Sequence[str] = (),
    fingerprint: Callable[[], Fingerprint] | None = None,
    exact_replay: bool = False,
) -> Verifier | Callable[[ReplayFunction], Verifier]:
    """Marks a function as a verifier and says what it can do."""

    def mark(marked: ReplayFunction) -> Verifier:
        lists = (tuple(arms), tuple(checkpoint_formats), tuple(frameworks))
        return Verifier(marked, *lists, fingerprint, exact_replay)

    return mark if function is None else mark(function)
