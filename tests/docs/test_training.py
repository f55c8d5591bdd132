"""benchmarks/training.py: names of cases, and small CPU runs."""

import importlib
import json

import programs
import pytest
import torch
from helpers import if_all, make_folder

from docs.pages import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def cases(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("cases")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("images"), classes=2, per_class=4, special=False)


def settings(cases, images, case, **options):
    return cases.loaders.Settings(str(images), torch.device("cpu"), 2, case.workers, case.depth, **options)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("ours", ("ours", 7, None, {}, {})),
        ("ours:4:3", ("ours", 4, 3, {}, {})),
        ("ours@_GPU_JPEG_THREADS=8,exact=True", ("ours", 7, None, {"exact": True}, {"_GPU_JPEG_THREADS": 8})),
        ("ours@routes._DEPTH=3", ("ours", 7, None, {}, {"routes._DEPTH": 3})),
        (
            "ours_exact:2@DALI_COMPAT_JPEG_ENGINE=0",
            ("ours_exact", 2, None, {}, {"DALI_COMPAT_JPEG_ENGINE": 0}),
        ),
        ("handwritten:4:5@pipelines=3", ("handwritten", 4, 5, {"pipelines": 3}, {})),
    ],
)
def test_case_name_is_parsed(cases, text, expected):
    assert cases.parse(text, 7) == cases.Case(*expected)


@pytest.mark.parametrize(
    "text",
    [
        "theirs",
        "ours:many",
        "ours@_NO_SUCH_CONSTANT=1",
        "ours@epoch._DEPTH=1",
        "ours@exact",
        "ours@exact=yes",
        "handwritten@_DEPTH=1",
        "torchvision@timeout=1",
    ],
)
def test_invalid_case_name_is_refused(cases, text):
    with pytest.raises(ValueError):  # noqa: PT011, raises subclasses as well
        cases.parse(text, 7)


def test_constants_are_restored_after_the_loader_is_created(cases, images):
    """Constants are set in every module that has them while the loader is created."""
    from dali_compat import routes

    before, case = vars(routes)["_MOST_THREADS"], cases.parse("ours:0@_MOST_THREADS=1,_DEPTH=3", 2)
    with cases.constants(case.constants):
        opened = cases.open_case(case, settings(cases, images, case))
        assert routes._MOST_THREADS == 1
        assert "1 CPU threads, 3 batches in flight" in opened.explain()
        opened.close()
    assert routes._MOST_THREADS == before != 1


@pytest.mark.parametrize("text", ["ours:1", "handwritten:1", "handwritten:1:3@pipelines=2"])
def test_every_epoch_has_all_images_as_channels_last_batches(cases, images, text):
    case = cases.parse(text, 1)
    opened = cases.open_case(case, settings(cases, images, case, channels_last=True))
    for _ in range(3):
        batches = list(opened.epoch())
        assert sorted(torch.cat([labels for _, labels in batches]).tolist()) == [0] * 4 + [1] * 4
        assert all(pixels.is_contiguous(memory_format=torch.channels_last) for pixels, _ in batches)
        assert all(pixels.shape == (2, 3, 224, 224) for pixels, _ in batches)
    opened.close()


@pytest.mark.parametrize("name", ["ours", "handwritten"])
def test_shards_cover_every_image_once(cases, images, name):
    """Together the processes load every image once."""
    labels = []
    for shard in range(2):
        case = cases.parse(name, 1)
        opened = cases.open_case(case, settings(cases, images, case, shard=shard, shards=2))
        labels += [label for _, batch in opened.epoch() for label in batch.tolist()]
        opened.close()
    assert sorted(labels) == [0] * 4 + [1] * 4


def test_paired_divides_speeds_of_the_same_round(cases):
    rows = [("a", 0, 6), ("b", 0, 3), ("b", 1, 2), ("a", 1, 1), ("a", 2, 5)]
    rounds = [{"case": case, "round": number, "speed": speed} for case, number, speed in rows]
    assert cases.common.paired(rounds, "speed", "a", "b") == [2, 0.5]


def test_gpu_time_separates_kernels_of_the_loader_from_the_models(cases):
    gpu_time = importlib.import_module("gpu_time")

    synthetic = {"gemm": [2.0, 10.0], "copy": [0.1, 1.0]}
    found = gpu_time.added({"gemm": [2.5, 10.0], "decode": [0.3, 2.0], "resize": [0.7, 1.0]}, synthetic)
    assert found["added_ms"] == 1.0 and found["launches"] == 3.0 and found["longer_ms"] == 0.5
    assert [kernel["name"] for kernel in found["kernels"]] == ["resize", "decode"]


def run(images, out, *words, ranks=0):
    """Run training.py in a process and return its result and the finished process."""
    small = "--batch-size 2 --drain 1 --warmup 1 --steps 2 --workers 1 --device cpu --models mobilenet_v3_small"
    command = [BENCHMARKS / "training.py", "--data", images, "--json", out, *small.split(), *words]
    done = programs.ranks(ranks, *command) if ranks else programs.python(*command)
    assert out.exists(), done.stderr
    return json.loads(out.read_text()), done


@if_all
@pytest.mark.slow
def test_training_measures_every_case_in_every_round(images, tmp_path):
    """The failing case is reported, and the others continue."""
    names = ["synthetic", "ours", "handwritten:1:3@hw_decoder_load=1.0", "ours@nonsense=1", "torchvision"]
    kinds = ["compiled_item"]
    words = ["--kinds", *kinds, "--backend", "eager", "--rounds", "2", "--cases", *names]
    result, done = run(images, tmp_path / "out.json", *words)
    assert result["failed"] == ["ours@nonsense=1"] and done.returncode == 1 and "nonsense" in done.stderr
    found = [(row["kind"], row["round"], row["case"]) for row in result["rounds"]]
    names.remove("ours@nonsense=1")
    assert sorted(found) == sorted((kind, number, name) for kind in kinds for number in range(2) for name in names)
    assert [case for kind, number, case in found if kind == kinds[0]] == [*names, *names[1:], names[0]]
    assert result["models"][0]["compiled_graphs"] == 1
    for kind in kinds:
        assert result["summary"][f"mobilenet_v3_small, {kind}, synthetic"]["share"]["median"] == 1
        assert f"| mobilenet_v3_small, {kind}, ours |" in done.stdout


@pytest.mark.slow
def test_training_stops_at_the_time_budget(images, tmp_path):
    words = ["--rounds", "1000", "--budget", "0.5", "--cases", "synthetic"]
    result, done = run(images, tmp_path / "out.json", *words)
    assert done.returncode == 0 and 0 < len(result["rounds"]) < 1000 and "| 1.000 |" in done.stdout


@if_all
@pytest.mark.slow
def test_training_with_two_processes_prints_one_table(images, tmp_path):
    words = ["--rounds", "1", "--cases", "synthetic", "ours"]
    result, done = run(images, tmp_path / "out.json", *words, ranks=2)
    assert done.returncode == 0, done.stderr
    assert result["processes"] == 2 and [row["case"] for row in result["rounds"]] == ["synthetic", "ours"]
    for row in result["rounds"]:
        assert row["images_per_s"] == pytest.approx(2 * 2 / row["ms_per_step"] * 1000)
    assert done.stdout.count("| mobilenet_v3_small, eager, ours |") == 1
