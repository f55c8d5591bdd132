"""Encoded images in one buffer (engine/planes/files)."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from helpers import each_of

from dali_compat.data.header import SIZE_FIELD
from dali_compat.data.sources import PATHS, Form
from dali_compat.engine.dali.pipeline import DecodePipeline
from dali_compat.engine.planes import files as of_files
from dali_compat.engine.planes.files import Files
from dali_compat.plan import Plan

CPU = torch.device("cpu")


def files(*lengths):
    rng = np.random.default_rng(0)
    return [rng.integers(1, 256, length, np.uint8) for length in lengths]


def concatenated(inputs):
    lengths = np.array([len(file) for file in inputs])
    return Files.from_packed(np.concatenate(inputs), lengths, CPU)


def separate(inputs):
    return Files.from_arrays(inputs, CPU)


@pytest.mark.parametrize("make", [separate, concatenated])
def test_files_hold_copies_of_the_input_bytes(make):
    inputs = files(0, 1, 7, 8, 9, 100, 100_000)
    made = make(inputs)
    some = made.only(np.array([6, 0, 3]))
    for expected, found in ((inputs, made), ([inputs[6], inputs[0], inputs[3]], some)):
        assert len(found) == len(expected) and found.lengths.tolist() == [len(file) for file in expected]
        for file, begin, address in zip(expected, found.begins.tolist(), found.addresses.tolist(), strict=True):
            assert np.array_equal(file, found.memory[begin : begin + len(file)])
            assert address == found.memory.ctypes.data + begin and not np.shares_memory(file, found.memory)
    marks = np.zeros(7, np.uint64)
    assert made.checksums(marks)[[6, 0, 3]].tolist() == some.checksums(marks[:3]).tolist()


@pytest.mark.parametrize("make", [separate, concatenated])
def test_stated_bytes_are_padded_with_zeros(make):
    inputs = files(10, SIZE_FIELD, 300, 5000)
    made = make(inputs)
    for at in (0, 7, 9, 10, 290, 4999, 10**6):
        size_field = made.size_field(np.full(4, at, np.int32))
        for file, found in zip(inputs, size_field, strict=True):
            expected = file[at : at + SIZE_FIELD].tobytes().ljust(SIZE_FIELD, b"\0")
            assert found.tobytes() == expected


@pytest.mark.parametrize("lengths", [(5, 1000, 77), (0, 1000, 77), (5, 1000, 0), (5,)])
def test_received_files_have_the_input_lengths_and_bytes(tmp_path, lengths):
    """packed() is only valid if the first file is not empty."""
    inputs = files(*lengths)
    for number, file in enumerate(inputs):
        (tmp_path / f"{number}").write_bytes(file.tobytes())
    plan = Plan((), (), (), exact=True, channels_last=False)
    pipeline = DecodePipeline(plan, CPU, threads=1, depth=1, batch_size=4, form=Form(PATHS, reads=True))
    received = pipeline.receive(pipeline.submit([str(tmp_path / f"{n}") for n in range(len(inputs))], []))
    assert received.lengths.tolist() == list(lengths)
    assert [len(file) for file in received.files()] == list(lengths)
    if lengths[0]:
        assert received.packed()[0].tobytes() == b"".join(file.tobytes() for file in inputs)
    pipeline.close()


def test_files_that_cannot_be_pinned_use_pageable_memory(monkeypatch):
    """Large buffers are not pinned either, because torch would cache them and twice the memory for good."""
    real_empty, pinned_sizes = torch.empty, []

    def empty(size, pin_memory, **how):
        pinned_sizes.append(size)
        if size > 150:
            raise RuntimeError("CUDA error: out of memory")
        return real_empty(size, **how)

    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(of_files, "_MOST_PINNED", 1000)
    for length in (100, 200, 2000):
        inputs = files(length, 0, 7)
        made = Files.from_arrays(inputs, torch.device("cuda", 1))
        assert all(np.array_equal(file, one) for file, one in zip(inputs, each_of(made), strict=True))
    assert pinned_sizes == [100 + 7 + 16, 200 + 7 + 16]
