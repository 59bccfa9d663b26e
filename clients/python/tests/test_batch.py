from __future__ import annotations

import array

import pytest

from gnomon import batch_hash
from gnomon.batch import capture_batch


def test_equal_tokens_have_equal_hashes_and_others_have_not() -> None:
    assert batch_hash([1, 2, 3]) == batch_hash((1, 2, 3)) == batch_hash(array.array("q", [1, 2, 3]))
    assert batch_hash([1, 2, 3]) != batch_hash([1, 3, 2])
    assert batch_hash([[1, 2], [3]]) == batch_hash([[1, 2], [3]])
    assert len(batch_hash([1])) == 16
    assert batch_hash(None) == ""


def test_a_mapping_counts_with_its_input_ids() -> None:
    batch = {"input_ids": [1, 2], "labels": [3]}
    assert batch_hash(batch) == batch_hash([1, 2]) == batch_hash(capture_batch(batch))
    assert batch_hash({"x": [1], "y": [2]}) == batch_hash({"y": [2], "x": [1]})
    assert batch_hash({"x": [1], "y": [2]}) != batch_hash({"x": [2], "y": [1]})


def test_a_buffer_that_is_used_again_is_copied() -> None:
    buffer = array.array("q", [1, 2, 3])
    kept = capture_batch((buffer, buffer))
    before = batch_hash((buffer, buffer))
    buffer[0] = 9
    assert batch_hash(kept) == before != batch_hash((buffer, buffer))
    tokens = [1, 2, 3]
    kept = capture_batch(tokens)
    tokens[0] = 9
    assert batch_hash(kept) == batch_hash([1, 2, 3])


def test_a_large_buffer_is_copied_too() -> None:
    large = bytearray(1 << 20)
    kept, before = capture_batch(large), batch_hash(large)
    large[0] = 1
    assert batch_hash(kept) == before != batch_hash(large)


def test_what_has_no_bytes_is_one_error() -> None:
    with pytest.raises(TypeError, match="a batch of type object has no bytes to hash"):
        batch_hash(object())
