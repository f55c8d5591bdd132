"""The bottleneck and the advice that bench reports, as functions of the measurements."""

from dataclasses import replace

import pytest

from dali_compat.cli.limits import (
    BUSY_MACHINE,
    CPU,
    DECODER,
    DISK,
    HOST,
    PYTHON,
    Measured,
    advice,
    limit,
)

IDLE = Measured(loading=0.1, read=0.01, host=0.01, cpu=0.1, cores=16, threads=4)
FOLDER = replace(IDLE, path="photos", folder=True, depth=2, batch_size=256, free=1e9)


@pytest.mark.parametrize(
    "measured, limits, why",
    [
        (dict(read=0.09), DISK, "90%"),
        (dict(host=0.085, cpu=0.085), HOST, "85%"),
        (dict(cpu=1.5, threads=16), CPU, "16 cores are busy for 94%"),
        (dict(cpu=0.4), CPU, "threads (4) are busy for 98%"),
        (dict(), DECODER, "disk 10%, calling thread 10%, cores 6%"),
        (dict(gpu=True), DECODER, "the GPU's decoder"),
        (dict(read=0.09, host=0.1, cpu=0.1), HOST, "100%"),  # the larger of two
        (dict(python=0.085, read=0.09, cpu=1.5), PYTHON, "85% of the time"),  # the first
        (dict(others=1.2), BUSY_MACHINE, "other programs use 75% of the 16 cores"),
        (dict(others=1.2, python=0.09), PYTHON, "90% of the time, while other programs use 75%"),
        (dict(others=1.2, read=0.09), BUSY_MACHINE, "75%"),  # other programs slow down reading, too
        (dict(others=0.8, cpu=1.4, threads=16), CPU, "87%"),  # the loader itself uses all cores
        (dict(others=1.0), DECODER, "cores 6%"),  # a third is idle
    ],
)
def test_limit_names_the_bottleneck_and_the_reason(measured, limits, why):
    verdict = limit(replace(IDLE, **measured))
    assert verdict.limit == limits and why in verdict.why


@pytest.mark.parametrize(
    "limits, setting, words",
    [
        (DISK, {}, ["dali_compat pack photos", "a faster disk"]),
        (DISK, dict(folder=False), ["a faster disk"]),
        (CPU, {}, ["num_workers=16 (now 4)", "more cores"]),
        (CPU, dict(threads=16, exact=True, has_gpu=True), ["device='cuda'", "exact=False", "more cores"]),
        (CPU, dict(threads=16), ["more cores"]),
        (DECODER, dict(exact=True, gpu=True), ["exact=False", "prefetch_factor=4 (now 2)", "smaller images"]),
        (HOST, {}, ["larger batches (now 256)", "a faster collate_fn"]),
        (PYTHON, dict(called=("Lambda has no translation",)), ["Lambda", "num_workers=16 (now 0)"]),
        (PYTHON, dict(called=("Lambda has no translation",), workers=16), ["Lambda"]),
        (PYTHON, dict(fallback="no folder"), ["because no folder", "num_workers=16 (now 4)"]),
        (BUSY_MACHINE, {}, ["measure again when the other programs have ended"]),
    ],
)
def test_advice_lists_the_settings_to_change(limits, setting, words):
    lines = advice(limits, replace(FOLDER, **setting))
    assert len(lines) == len(words)
    assert all(word in line for word, line in zip(words, lines, strict=True)), lines
