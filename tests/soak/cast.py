"""Who takes part: the jobs that live as long as the daemon, and the verifiers."""

from __future__ import annotations

from client import Connector
from soak import Soak
from trainer import Habits as Job
from trainer import TrainingJob
from truth import SITES, Fault
from verifier import Habits as Pool
from verifier import Verifier

JOBS = {
    "team-a-1": Job(fault=Fault(SITES[4], 30, 60, 90, 0.03), statistics=True, notices=0.03),
    "team-a-2": Job(
        fault=Fault(SITES[7], 20, 40, 70, 0.2), not_finite=0.005, spike=0.005, restarts=0.02, late=0.2, ignores=0.1
    ),
    "breaks-holds": Job(fault=Fault(SITES[0], 0, 25, 40, 0.3), not_finite=0.01, breaks_holds=True),
    "broken-host": Job(fault=Fault(SITES[2], 60, 80, 150, 0.02), broken_host=0.15, device=True, notices=0.03),
    "memory": Job(fault=Fault(SITES[3], 20, 60, 100, 0.1), rejects=0.3, device=True, statistics=True),
    "silent": Job(fault=Fault(SITES[8], 10, 60, 70, 0.1), late=0.3, ignores=0.2, goes_silent=True),
    "inline": Job(fault=Fault(SITES[5], 30, 50, 90, 0.05), inline=True, broken_host=0.05),
    "slow-bias": Job(fault=Fault(SITES[6], 0, 1000, 1000, 0.006)),
    "chaos": Job(
        fault=Fault(SITES[1], 0, 40, 60, 0.3),
        not_finite=0.01,
        spike=0.01,
        rejects=0.4,
        late=0.3,
        ignores=0.2,
        restarts=0.05,
        broken_host=0.1,
    ),
    "nobody-fits": Job(turn_seconds=2.5),
    "healthy": Job(turn_seconds=0.8),
}

VERIFIERS = {
    "good-1": Pool(labels=(("pool", "a"), ("rack", "1")), slow=0.05),
    "good-2": Pool(labels=(("pool", "b"),), slow=0.05, dies=0.02),
    "liar": Pool(labels=(("pool", "b"),), lies=0.5, away="liar"),
    "fails": Pool(labels=(("pool", "a"), ("host", "x")), fails=0.4, dies=0.1),
    "late": Pool(labels=(("pool", "a"),), dies=0.1, slow=0.2),
    "other-device": Pool(labels=(("pool", "gpu"),), backend="cuda"),
}


def start_jobs(soak: Soak, connector: Connector, by_run: dict[str, TrainingJob]) -> list[TrainingJob]:
    """A twentieth of a second apart, so that runs are numbered as they stand here."""
    jobs = []
    for name, habits in JOBS.items():
        job = TrainingJob(soak, connector, name, habits)
        jobs.append(job)

        def live(job: TrainingJob = job) -> None:
            job.live(by_run)

        soak.start(f"trainer {name}", live)
        soak.sleep(0.1)
    return jobs


def start_verifiers(soak: Soak, connector: Connector, by_run: dict[str, TrainingJob]) -> None:
    for name, habits in VERIFIERS.items():
        soak.start(f"verifier {name}", Verifier(soak, connector, name, habits, by_run).live)
