"""What docs/clients.md says of torchft: signatures, and where a step is decided."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch")
pytest.importorskip("torchft", reason="needs pip install torchft")

from torchft import Manager
from torchft.optim import OptimizerWrapper


def parameters(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_a_step_counts_where_the_manager_commits() -> None:
    assert parameters(Manager.current_step) == ["self"]
    assert parameters(Manager.should_commit)[:1] == ["self"]
    commit = inspect.getsource(Manager.should_commit)
    assert commit.index("if should_commit:") < commit.index("self._step += 1")
    step = inspect.getsource(OptimizerWrapper.step)
    assert step.index("self.manager.should_commit()") < step.index("self.optim.step()")


def test_a_group_that_heals_takes_registered_states_over() -> None:
    names = ["self", "key", "load_state_dict", "state_dict"]
    assert parameters(Manager.register_state_dict_fn) == names
    healing = inspect.getsource(Manager._apply_pending_state_dict)
    assert "for key in self._load_state_dict_fns" in healing
