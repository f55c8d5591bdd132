"""Run the examples as users do, each in a separate process, with tiny photos on the CPU."""

import ast
import importlib
import json
import os
import pickle
import re
from pathlib import Path

import programs
import pytest
import torch
from helpers import if_all, transformers_module

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))
TRAIN, VAL, BATCH = 32, 16, 8
SMALL = ["--size", "32", "--batch-size", str(BATCH), "--workers", "1", "--epochs", "2"]
TINY = [*SMALL, "--model", "shufflenet_v2_x0_5"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Change to a temporary folder, and hide GPUs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])))
    return tmp_path


def run(name: str, *arguments, ranks=0) -> str:
    """Run an example and return its output, both stdout and stderr."""
    words = EXAMPLES / name, *arguments
    done = programs.ranks(ranks, *words) if ranks else programs.python(*words)
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    return output


def stats_lines(output: str) -> list[tuple[int, int]]:
    """Return (batches, images) of each loader.stats() line."""
    lines = re.findall(r"(\d+) batch(?:es)?, (\d+) images, .* images/s\); next\(\) took .* waiting", output)
    return [(int(batches), int(images)) for batches, images in lines]


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^epoch \d+: loss ([\d.]+)", output, re.MULTILINE)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return the folder that make_photos.py writes."""
    root = tmp_path_factory.mktemp("made") / "photos"
    run("make_photos.py", root, "--train", TRAIN, "--val", VAL, "--size", 48)
    return root


def test_make_photos_writes_folders_of_classes(photos):
    for part, count in ("train", TRAIN), ("val", VAL):
        files = {folder.name: len(list(folder.glob("*.jpg"))) for folder in (photos / part).iterdir()}
        assert files == {"class_0": count // 2, "class_1": count // 2}


@if_all
def test_cifar10_trains_with_both_loaders(place):
    """With both loaders, as the benchmark runs it."""
    options = ["--samples", 256, "--width", 4, "--batch-size", 32, "--epochs", 3, "--workers", 1]
    output = run("../benchmarks/recipes.py", "cifar10", "--seeds", 1, "--json", "out.json", "--synthetic", *options)
    for found in losses(output)[:3], losses(output)[3:]:
        assert len(found) == 3 and found[-1] < found[0]
    assert len(re.findall(r"^accuracy 0\.\d{4} after \d+\.\d s of training$", output, re.MULTILINE)) == 2
    assert stats_lines(output) == [(24, 768)]  # dali_compat's
    rounds = json.loads((place / "out.json").read_text())["rounds"]
    assert [row["case"] for row in rounds] == ["torchvision", "dali_compat"]
    for row in rounds:
        assert len(row["seconds"]) == len(row["images_per_s"]) == 3 and 0 < row["accuracy"] < 1
        assert (row["in_next"] is None) is (row["case"] == "torchvision")


def test_dogs_cats_prints_speed_and_accuracy(photos):
    output = run("dogs_cats.py", photos / "train", *TINY, "--from-scratch")
    assert len(re.findall(r"^epoch \d: \d+\.\d\d s, \d+ images/s, accuracy [01]\.\d{4}$", output, re.MULTILINE)) == 2
    steps = (TRAIN - 4) // BATCH  # every tenth photo is for validation
    assert stats_lines(output) == [(2 * steps, 2 * steps * BATCH)]


def test_simclr_saves_the_encoder(photos, place):
    output = run("simclr.py", photos / "train", *TINY, "--save", "encoder.pt")
    assert len(losses(output)) == 2 and "views" in output
    assert stats_lines(output) == [(2 * TRAIN // BATCH, 2 * TRAIN)]
    weights = torch.load(place / "encoder.pt")
    assert "conv1.0.weight" in weights and not any(name.startswith("fc.") for name in weights)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """Return photos with masks and boxes."""
    root = tmp_path_factory.mktemp("made") / "shapes"
    run("make_photos.py", root, "--voc", "--train", 12, "--val", 4, "--size", 64)
    return root


@pytest.mark.parametrize(
    "name, metric, loader",
    [
        ("segmentation.py", "mIoU", "dali_compat"),
        ("segmentation.py", "mIoU", "torchvision"),
        ("detection.py", "AP50", "dali_compat"),
    ],
)
def test_segmentation_and_detection_train_and_print_their_metric(shapes, name, metric, loader):
    size = ["--size", 64] if name == "segmentation.py" else []
    output = run(name, shapes, *size, "--batch-size", 4, "--epochs", 1, "--workers", 1, "--loader", loader)
    lines = re.findall(rf"^epoch \d: loss \d+\.\d+, {metric} [01]\.\d{{4}}, \d+ images/s$", output, re.MULTILINE)
    assert len(lines) == 1
    assert stats_lines(output) == ([(3, 12)] if loader == "dali_compat" else [])
    assert ("DALI route on cpu" in output) is (loader == "dali_compat")


def test_mean_ap_counts_wrong_and_repeated_detections(monkeypatch):
    """One of two boxes of a class is found, after a wrong detection; the box of another class is found, and then
    again."""
    monkeypatch.syspath_prepend(EXAMPLES)
    detection = importlib.import_module("detection")
    box = torch.tensor([[0.0, 0, 10, 10], [20, 20, 40, 40], [50, 50, 60, 60]])
    target = {"boxes": box, "labels": torch.tensor([1, 1, 2])}
    found = {
        "boxes": torch.stack([box[2], box[0], box[2], box[2] + 1]),
        "labels": torch.tensor([1, 1, 2, 2]),
        "scores": torch.tensor([0.9, 0.8, 0.7, 0.6]),
    }
    model = torch.nn.Module()
    monkeypatch.setattr(model, "forward", lambda images: [found] * len(images), raising=False)
    ap = detection.mean_ap(model, [(torch.zeros(1, 3, 8, 8), [target])], torch.device("cpu"))
    assert ap == pytest.approx((0.25 + 1) / 2)


def refused(name: str, *arguments) -> str:
    """Return the only line of an example's error output."""
    done = programs.python(EXAMPLES / name, *arguments)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    return done.stderr.splitlines()[-1]


IN_TURN = """
import json, os, runpy, sys
os.dup2(1, 2)
file, runs = sys.argv[1:]
for words in json.loads(runs):
    sys.argv[:] = [file, *words]
    try:
        runpy.run_path(file, run_name="__main__")
    except SystemExit as error:
        print(error)
    print("=" * 9, flush=True)
"""


def run_in_turn(name: str, *runs: list) -> list[str]:
    """Run an example several times in one process, which imports its framework once. Return the output of each run,
    which ends with the message of SystemExit."""
    done = programs.run(IN_TURN, str(EXAMPLES / name), json.dumps([list(map(str, words)) for words in runs]))
    assert done.returncode == 0, done.stdout
    return done.stdout.split("=" * 9 + "\n")[:-1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, module", [("ignite_trainer.py", "ignite"), ("lightning_classifier.py", "lightning")])
def test_resume_continues_in_mid_epoch_or_exits_with_a_reason(photos, name, module):
    pytest.importorskip(module)
    missing, whole = run_in_turn(name, [photos, *TINY, "--resume"], [photos, *TINY, "--save-every", 3])
    assert missing.splitlines()[-1].startswith("--resume: there is no checkpoint checkpoints/last.")
    assert stats_lines(whole) == 2 * [(TRAIN // BATCH, TRAIN)] and (
        module != "ignite" or "ms a step, accuracy" in whole
    )
    # so that there is a checkpoint after the last step, too
    resume = [photos, *TINY, "--save-every", 4, "--resume"]
    rest, refused, *more = run_in_turn(name, resume, resume, *[[*resume, "--epochs", 3]] * (module == "ignite"))
    assert stats_lines(rest) == [(2, 2 * BATCH)]  # two of the second epoch's four batches are left
    assert {"ignite": "resuming after 6 steps", "lightning": "after 8 steps"}[module] in rest
    last = refused.splitlines()[-1]
    assert last.startswith("--resume: all 2 epochs of checkpoints/last.") and last.endswith(
        (" to train on", " begins anew")
    )
    assert [len(stats_lines(output)) for output in more] == [1] * len(more)  # Lightning's schedule is for two epochs


def test_dogs_cats_without_network_suggests_from_scratch(photos, place, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(place))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    output = refused("dogs_cats.py", photos / "train", *SMALL)
    assert output.startswith("ImageNet's weights cannot be downloaded") and "--from-scratch" in output


@if_all
def test_accelerate_benchmark_records_speed_and_waiting(photos, place):
    """As the benchmark runs it."""
    pytest.importorskip("accelerate")
    options = ["--data", photos / "train", "--only", "accelerate_loop", "--json", "out.json"]
    output = run("../benchmarks/frameworks.py", *options, *TINY)
    result = json.loads((place / "out.json").read_text())
    (row,) = result["rounds"]
    assert len(row["images_per_s"]) == len(row["in_next"]) == 2 and result["images"]["files"] == TRAIN
    assert all(rate > 0 for rate in row["images_per_s"]) and all(0 <= share < 1 for share in row["in_next"])
    assert "| accelerate_loop | " in output


def test_accelerate_splits_the_samples_over_two_ranks(photos, monkeypatch):
    """Each rank has half of the samples, as under torchrun, which ``accelerate launch`` uses for several GPUs."""
    pytest.importorskip("accelerate")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    output = run("accelerate_loop.py", photos, *TINY, ranks=2)
    assert stats_lines(output) == 2 * [(TRAIN // BATCH // 2, TRAIN // 2)]
    assert len(re.findall(r"^epoch \d: accuracy [01]\.\d{3}$", output, re.MULTILINE)) == 2


@pytest.mark.filterwarnings("ignore")
def test_hugging_face_trainer_evaluates_and_saves(photos, place):
    transformers_module()
    output = run("huggingface_trainer.py", photos, *SMALL)
    assert re.search(r"^\S*huggingface_trainer.py:\d+ runs on DALI \(cpu\)$", output, re.MULTILINE)
    assert output.count("'eval_accuracy'") == 2 and (place / "checkpoints" / "model.safetensors").exists()


@pytest.mark.filterwarnings("ignore")
def test_ray_trains_on_two_workers(photos):
    """Two workers in Ray's local mode, since a cluster would start a dozen processes, most of them with torch."""
    pytest.importorskip("ray.train.torch")
    output = run("ray_train.py", photos, *TINY, "--workers", 0, ranks=2)
    assert (
        len(re.findall(r"last epoch: \{'loss': [\d.]+, 'images_per_second': [\d.]+, 'waited': 0\.\d+\}", output)) == 2
    )
    assert stats_lines(output) == 4 * [(TRAIN // BATCH // 2, TRAIN // 2)]  # lines of two workers and two epochs


@pytest.mark.filterwarnings("ignore")
def test_rays_worker_function_can_be_pickled_by_value(monkeypatch):
    """Functions of a program are pickled in this way, with the globals that they use."""
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    monkeypatch.syspath_prepend(EXAMPLES)
    module = importlib.import_module("ray_train")
    cloudpickle.register_pickle_by_value(module)
    made = pickle.loads(cloudpickle.dumps(module.train_worker))
    assert made is not module.train_worker and made.__globals__["DataLoader"] is module.DataLoader


# ---- the notebook


def code(notebook: dict) -> list[dict]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.fixture
def notebook() -> dict:
    return json.loads((EXAMPLES / "notebook.ipynb").read_text())


def test_notebook_is_committed_with_outputs(notebook):
    assert [cell["execution_count"] for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    outputs = [output for cell in code(notebook) for output in cell["outputs"]]
    assert not any(output["output_type"] == "error" for output in outputs)
    assert "image/jpeg" in outputs[-1]["data"]


@pytest.mark.filterwarnings("ignore")
def test_notebook_runs(place):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    whole, small = "IMAGES, BATCH, ROUNDS = 256, 32, 3", "IMAGES, BATCH, ROUNDS = 16, 8, 1"
    assert whole in notebook.cells[1].source
    notebook.cells[1].source = notebook.cells[1].source.replace(whole, small)
    resources = {"metadata": {"path": str(place)}}
    nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3", resources=resources).execute()
    output = "".join(output.get("text", "") for cell in code(notebook) for output in cell["outputs"])
    assert "with exact=True: 0 at most" in output
    (plan,) = [output["data"]["text/html"] for output in code(notebook)[1]["outputs"]]
    assert "DALI route on cpu" in plan and "without effect" not in plan
    assert len(re.findall(r"torchvision \d+ images/s, dali_compat \d+ images/s, ratio \d", output)) == 1
    assert stats_lines(output) == [(4, 32)]


# ---- documentation of the examples


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "make_photos.py"])
def test_docstrings_have_command_reproduces_and_measured(name):
    output = ast.get_docstring(ast.parse((EXAMPLES / name).read_text()))
    assert re.search(rf"^    python examples/{name} ", output, re.MULTILINE)
    assert "\nReproduces: " in output and "\nMeasured: " in output


def pages() -> str:
    """Return the page about all examples and the page of each recipe."""
    docs = REPOSITORY / "docs"
    return "\n".join(path.read_text() for path in [docs / "examples.md", *sorted(docs.glob("recipe-*.md"))])


def test_every_example_is_documented():
    page = pages()
    assert len(SCRIPTS) > 5
    for name in [*SCRIPTS, "notebook.ipynb"]:
        assert f"examples/{name}" in page, name


def test_documented_commands_use_existing_options():
    output = [pages(), *(ast.get_docstring(ast.parse((EXAMPLES / name).read_text())) for name in SCRIPTS)]
    commands = re.findall(r"examples/(\w+\.py)([^\n`&#]*)", "\n".join(output))
    assert {name for name, _ in commands} == set(SCRIPTS)
    for name, rest in commands:
        for option in re.findall(r"--[\w-]+", rest):
            assert f'"{option}"' in (EXAMPLES / name).read_text(), (name, option)
