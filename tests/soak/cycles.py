"""Runs that come and go: they complete, are stopped, fall silent and are ended by hand, come back, and are deleted."""

from __future__ import annotations

from client import Connector
from soak import Soak
from trainer import Habits, TrainingJob
from truth import SITES, Fault

SILENT_BEFORE_END_SECONDS = 122  # `runs end` is refused until a trainer has been silent for two minutes
BUSY = Habits(fault=Fault(SITES[1], 10, 25, 40), turn_seconds=0.5, notices=0.2, device=True, statistics=True)


class Cycles:
    def __init__(self, soak: Soak, connector: Connector, jobs: dict[str, TrainingJob]) -> None:
        self.soak = soak
        self.connector = connector
        self.jobs = jobs
        self.admin = connector.client("admin", "cycles")

    def start(self) -> None:
        self.soak.start("runs that end", self.end_and_delete)
        if self.soak.seconds > 1.5 * SILENT_BEFORE_END_SECONDS:
            self.soak.start("runs that are ended", self.end_by_hand)

    def _job(self, name: str, number: int, habits: Habits) -> TrainingJob | None:
        job = TrainingJob(self.soak, self.connector, name, habits, str(number))
        job.may_be_deleted = True
        if not job.register():
            return None
        self.jobs[job.run] = job
        job.begin_attempt(0, "start")
        return job

    def _train(self, job: TrainingJob, turns: int) -> bool:
        """So many turns, whatever is ordered; false when the soak ends meanwhile, or a directive ended the run."""
        for _ in range(turns):
            if self.soak.sleep(0.5):
                return False
            job.train()
            job.poll()
            job.paused_at = None  # it goes on all the same; orders that it does not heed are repeated or expire
            if job.ended:
                return False
        return True

    def end_and_delete(self) -> None:
        draw = self.soak.random("runs that end")
        number = 0
        outcomes = ("completed", "failed", "stopped")
        while not self.soak.stopping.is_set():
            number += 1
            job = self._job("cycle", number, BUSY)
            if job is None or not self._train(job, draw.randint(6, 12)):
                if self.soak.sleep(1):
                    return
            outcome = outcomes[number % 3]
            if job is None:
                continue
            self.admin.ask("DELETE", f"/v1/runs/{job.run}", expect=(409,) if not job.ended else (204,))
            if job.ended:
                continue
            job.finish(outcome)
            self.soak.tally.add("runs ended")
            keep = self.soak.times.series_keep
            if self.soak.sleep(draw.choice([1, 0.5 * keep, 1.5 * keep])):
                return
            if outcome != "completed" and number % 2 == 0:
                self._revive(job)
            if number % 3 == 0 and job.ended:
                self._delete(job)

    def _revive(self, job: TrainingJob) -> None:
        """A trainer that comes back after all, with an attempt or a step that is not on record."""
        job.ended = ""
        job.restart()
        self.soak.tally.add("runs revived")
        self.admin.ask("DELETE", f"/v1/runs/{job.run}", expect=(409,))
        self._train(job, 4)
        if not job.ended:
            job.finish("completed")

    def _delete(self, job: TrainingJob) -> None:
        place = f"/v1/runs/{job.run}"
        self.jobs.pop(job.run, None)
        self.admin.ask("DELETE", place, expect=(204,))
        self.admin.get(place, expect=(404,))
        job.client.post(f"{place}/steps", {"steps": []}, expect=(404,))
        self.soak.tally.add("runs deleted")

    def end_by_hand(self) -> None:
        """A trainer goes silent for good; after two minutes an operator ends its run; it comes back after all."""
        operator = self.connector.client("operator", "ends runs")
        body = {"owner": "mira", "reason": "the node is gone"}
        number = 0
        while not self.soak.stopping.is_set():
            number += 1
            job = self._job("gone", number, BUSY)
            if job is None or not self._train(job, 10):
                if self.soak.sleep(5):
                    return
                continue
            place = f"/v1/runs/{job.run}/end"
            operator.post(place, body, expect=(409,))
            if self.soak.sleep(SILENT_BEFORE_END_SECONDS):
                return
            operator.post(place, body, expect=(204,))
            operator.post(place, body, expect=(204,))
            self.soak.tally.add("runs ended by hand")
            job.restart()
            self._train(job, 4)
            if not job.ended:
                job.finish("failed")
