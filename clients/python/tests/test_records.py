from __future__ import annotations

import importlib.util
import json
import math
import pathlib
from typing import Any

import pytest
from daemon import Daemon

from gnomon.json_record import BadRecord, from_json, to_json
from gnomon.records import Fingerprint, Lease, RunRegistration, StepReport

CLIENT = pathlib.Path(__file__).resolve().parents[1]


def build_records() -> Any:
    spec = importlib.util.spec_from_file_location("build_records", CLIENT / "build_records.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_records_are_those_of_the_daemon(daemon: Daemon) -> None:
    text = build_records().write_records(daemon.get("/openapi.json"))
    written = (CLIENT / "src" / "gnomon" / "records.py").read_text()
    assert written == text, "run: python build_records.py URL/openapi.json"


def test_numbers_that_json_lacks_are_words_both_ways() -> None:
    for value, word in ((math.inf, "Infinity"), (-math.inf, "-Infinity"), (math.nan, "NaN")):
        text = to_json(StepReport(attempt=1, step=2, plan_version=0, loss=value))
        assert json.loads(text)["loss"] == word
        back = from_json(StepReport, text).loss
        assert back == value or (math.isnan(back) and math.isnan(value))


def test_what_is_not_said_is_left_out() -> None:
    text = to_json(StepReport(attempt=1, step=2, plan_version=0, loss=1.5))
    assert json.loads(text) == {"attempt": 1, "step": 2, "plan_version": 0, "loss": 1.5}


def test_records_within_records_are_read_and_unknown_members_passed_over() -> None:
    lease = from_json(
        Lease,
        '{"lease":1,"token":2,"ttl_seconds":5,"new":1,"task":{"run":"run-1","replay":1,"window":1,'
        '"attempt":1,"arm":"bf16","checkpoint_uri":"/c","start_step":10,"steps":5}}',
    )
    assert lease.task.start_step == 10
    assert lease.ttl_seconds == 5.0


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('{"lease":1}', "Lease.token is missing"),
        ('{"lease":"x","token":1,"ttl_seconds":1,"task":{}}', 'Lease.lease: "x" not accepted'),
        ('{"lease":true,"token":1,"ttl_seconds":1,"task":{}}', "expected a whole number"),
        ('{"lease":1,"token":1,"ttl_seconds":"ten","task":{}}', "Lease.ttl_seconds"),
        ("[]", "expected an object"),
        ("{", "not JSON"),
    ],
)
def test_a_wrong_message_is_named_with_its_place(text: str, wrong: str) -> None:
    with pytest.raises(BadRecord, match=wrong.replace("[", r"\[")):
        from_json(Lease, text)


def test_a_registration_carries_its_parts() -> None:
    print_ = Fingerprint("cpu", "cpu", "x", "y", 1, 2)
    text = to_json(RunRegistration("a", "b", print_, "version = 1", ["s"], 1, 10))
    assert json.loads(text)["fingerprint"]["threads"] == 2
    assert from_json(RunRegistration, text).fingerprint == print_
