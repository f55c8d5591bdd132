"""Threads that resize images one by one: order, errors, forks and interpreter shutdown."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import programs
import pytest
import torch

from dali_compat.ops.pixels import lists
from dali_compat.ops.pixels.lists import each, spare_batch, stack_if_uniform


def test_spare_batch_reuses_memory_only_after_all_views_are_freed():
    lists._spare.clear()
    first = spare_batch((2, 3, 400, 500))
    at = first.data_ptr()
    part = first[1, 0]
    numbers = first.numpy()[0, 0]
    del first
    assert spare_batch((2, 3, 400, 500)).data_ptr() != at
    del part
    assert spare_batch((2, 3, 400, 500)).data_ptr() != at
    del numbers
    made = [spare_batch((2, 3, 400, 500)) for _ in range(9)]
    assert sum(one.data_ptr() == at for one in made) == 1 and len({one.data_ptr() for one in made}) == 9
    other = spare_batch((2, 3, 400, 500), np.int32)
    assert other.dtype == torch.int32 and len(lists._spare) == 10
    del made, other
    assert spare_batch((1, 3, 400, 500)).shape == (1, 3, 400, 500) and len(lists._spare) <= 4


def test_spare_batch_in_several_threads_gives_separate_memory():
    lists._spare.clear()

    def filled(number: int) -> bool:
        batches = []
        for _ in range(200):
            batches = [spare_batch((1, 1, 256, 256)), *batches[:2]]
            batches[0].fill_(number)
        return all(bool((batch == number).all()) for batch in batches)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(filled, range(64)))


def test_each_runs_in_several_threads_and_returns_rows_in_order():
    barrier = threading.Barrier(min(2, len(os.sched_getaffinity(0))), timeout=60)

    def add(a, b):
        barrier.wait()  # needs two threads to pass
        return a + b

    assert each(add, range(10), range(10, 20)) == list(range(10, 30, 2))
    assert each(add, [], []) == []


def test_each_when_a_row_raises_reraises_the_error():
    with pytest.raises(ZeroDivisionError):
        each(lambda x: 1 // x, [2, 1, 0, 3])
    assert each(lambda x: 1 // x, [2, 1]) == [0, 1]


def test_each_in_forked_child_starts_new_threads():
    assert each(abs, [-1, -2]) == [1, 2]
    child = os.fork()
    if not child:
        os._exit(0 if each(abs, [-3, -4]) == [3, 4] else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("before", ["", "each(abs, [-1, -2])"], ids=["unused", "used"])
def test_each_works_after_the_main_thread_has_ended(before):
    code = f"""
import threading, time
from dali_compat.ops.pixels.lists import each
{before}
def late():
    threading.main_thread().join()
    time.sleep(0.2)
    print(each(abs, [-3, -4]))
threading.Thread(target=late).start()
"""
    done = programs.run(code)
    assert (done.returncode, done.stdout) == (0, "[3, 4]\n"), done.stderr


def test_uniform_stacks_equal_shapes_and_returns_other_lists_unchanged():
    images = [torch.from_numpy(np.full((3, 4, 5), i, np.uint8)) for i in range(3)]
    assert torch.equal(stack_if_uniform(images), torch.stack(images))
    for other in (images[0][:, :2], images[0].float()):
        ragged = [*images, other]
        assert stack_if_uniform(ragged) is ragged
