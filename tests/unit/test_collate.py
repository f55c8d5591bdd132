"""A collate_fn that cannot take samples on a GPU.

The tests need no GPU, because they raise the same errors on the CPU.
"""

import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from dali_compat import FallbackWarning
from dali_compat.epoch.collate import UserCollate

GPU = torch.device("cuda", 0)
DEVICE_ERRORS = [
    TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory"),
    RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"),
]


class Picky:
    """Collate function that modifies its samples, draws random numbers, and then raises its errors in turn."""

    def __init__(self, *errors):
        self.errors, self.seen = list(errors), []

    def __call__(self, samples):
        made = torch.stack(samples) + 0
        samples[0][:] = 99
        drawn = float(torch.rand(())), random.random(), float(np.random.rand())
        if self.errors:
            raise self.errors.pop()
        self.seen.append((made, drawn))
        return made


def call(collate, function, images, device=GPU):
    return collate(function, list, images, device, nullcontext)


def seed():
    torch.manual_seed(0), random.seed(0), np.random.seed(0)


@pytest.mark.parametrize("error", DEVICE_ERRORS, ids=lambda error: type(error).__name__)
def test_collate_fn_when_it_fails_on_gpu_is_rerun_with_the_same_samples_and_draws(error):
    plain, picky = Picky(), Picky(error)
    seed()
    call(UserCollate("warn"), plain, torch.arange(6.0).view(2, 3))
    collate = UserCollate("warn")
    seed()
    with pytest.warns(FallbackWarning, match="collate_fn Picky cannot take samples on a GPU .*copied to the CPU"):
        made = call(collate, picky, torch.arange(6.0).view(2, 3))
    assert torch.equal(made, torch.arange(6.0).view(2, 3))
    assert picky.seen[0][1] == plain.seen[0][1] and len(picky.seen) == 1
    call(collate, picky, torch.ones(2, 3))  # no second warning: warnings are errors here
    assert torch.equal(picky.seen[1][0], torch.ones(2, 3))


def test_tv_tensors_keep_their_class_in_samples():
    images = [tv_tensors.Image(torch.zeros(3, 4, 5)) for _ in range(2)]
    collate = UserCollate("warn")
    for _ in range(2):
        made = collate(list, list, images, GPU, nullcontext)
        assert [type(image) for image in made] == [tv_tensors.Image] * 2


def test_second_collate_fn_is_tried_on_gpu_again():
    collate, images = UserCollate("silent"), torch.zeros(2, 3)
    first, second = Picky(DEVICE_ERRORS[0]), Picky(DEVICE_ERRORS[1])
    for function in (first, second):
        call(collate, function, images)
    assert len(first.seen) == len(second.seen) == 1


def test_collate_fn_that_worked_on_gpu_is_not_rerun_on_error():
    collate, picky, images = UserCollate("warn"), Picky(), torch.zeros(2, 3)
    call(collate, picky, images)
    picky.errors = list(DEVICE_ERRORS)
    with pytest.raises(RuntimeError, match="two devices"):
        call(collate, picky, images)
    assert len(picky.errors) == 1


@pytest.mark.parametrize("error", [ValueError("odd"), KeyError("cuda"), torch.cuda.OutOfMemoryError("CUDA: device")])
def test_other_errors_of_collate_fn_are_reraised(error):
    picky = Picky(error)
    with pytest.raises(type(error)):
        call(UserCollate("warn"), picky, torch.zeros(2, 3))
    assert not picky.seen


def test_collate_fn_when_it_fails_on_gpu_and_fallback_is_error_raises():
    with pytest.raises(RuntimeError, match="fallback='error', but collate_fn Picky cannot"):
        call(UserCollate("error"), Picky(DEVICE_ERRORS[1]), torch.zeros(2, 3))


def test_collate_fn_on_cpu_is_called_once():
    picky = Picky(DEVICE_ERRORS[0])
    with pytest.raises(TypeError):
        call(UserCollate("warn"), picky, torch.zeros(2, 3), torch.device("cpu"))
    assert not picky.errors
