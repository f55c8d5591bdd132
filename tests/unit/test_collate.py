"""A collate_fn that cannot take samples on a GPU. No GPU is needed: what it raises there is raised here."""

import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torchvision import tv_tensors

from dali_compat import FallbackWarning
from dali_compat.epoch.collate import UserCollate

GPU = torch.device("cuda", 0)
OF_DEVICES = [
    TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory"),
    RuntimeError("Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"),
]


class Picky:
    """Changes its samples, draws, and then raises, as often as it has errors."""

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


@pytest.mark.parametrize("error", OF_DEVICES, ids=lambda error: type(error).__name__)
def test_it_gets_the_same_batch_again_with_the_same_draws(error):
    plain, picky = Picky(), Picky(error)
    seed()
    call(UserCollate("warn"), plain, torch.arange(6.0).view(2, 3))
    collate = UserCollate("warn")
    seed()
    with pytest.warns(FallbackWarning, match="collate_fn Picky cannot take samples on a GPU .*copied to the CPU"):
        made = call(collate, picky, torch.arange(6.0).view(2, 3))
    assert torch.equal(made, torch.arange(6.0).view(2, 3))
    assert picky.seen[0][1] == plain.seen[0][1] and len(picky.seen) == 1
    call(collate, picky, torch.ones(2, 3))  # says nothing again: warnings are errors
    assert torch.equal(picky.seen[1][0], torch.ones(2, 3))


def test_images_keep_their_class():
    images = [tv_tensors.Image(torch.zeros(3, 4, 5)) for _ in range(2)]
    collate = UserCollate("warn")
    for _ in range(2):
        made = collate(list, list, images, GPU, nullcontext)
        assert [type(image) for image in made] == [tv_tensors.Image] * 2


def test_another_function_is_tried_anew():
    collate, images = UserCollate("silent"), torch.zeros(2, 3)
    first, second = Picky(OF_DEVICES[0]), Picky(OF_DEVICES[1])
    for function in (first, second):
        call(collate, function, images)
    assert len(first.seen) == len(second.seen) == 1


def test_a_function_that_took_samples_there_is_not_called_twice():
    collate, picky, images = UserCollate("warn"), Picky(), torch.zeros(2, 3)
    call(collate, picky, images)
    picky.errors = list(OF_DEVICES)
    with pytest.raises(RuntimeError, match="two devices"):
        call(collate, picky, images)
    assert len(picky.errors) == 1


@pytest.mark.parametrize("error", [ValueError("odd"), KeyError("cuda"), torch.cuda.OutOfMemoryError("CUDA: device")])
def test_other_errors_are_the_users(error):
    picky = Picky(error)
    with pytest.raises(type(error)):
        call(UserCollate("warn"), picky, torch.zeros(2, 3))
    assert not picky.seen


def test_an_error_if_the_loader_shall_not_fall_back():
    with pytest.raises(RuntimeError, match="fallback='error', but collate_fn Picky cannot"):
        call(UserCollate("error"), Picky(OF_DEVICES[1]), torch.zeros(2, 3))


def test_on_the_cpu_it_is_called_once():
    picky = Picky(OF_DEVICES[0])
    with pytest.raises(TypeError):
        call(UserCollate("warn"), picky, torch.zeros(2, 3), torch.device("cpu"))
    assert not picky.errors
