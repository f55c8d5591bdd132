"""The examples run as a user runs them, each in a process of its own, on tiny photos and on the CPU."""

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
from helpers import transformers_module

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLES = REPOSITORY / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py"))
TRAIN, VAL, BATCH = 32, 16, 8
SMALL = ["--size", "32", "--batch-size", str(BATCH), "--workers", "1", "--epochs", "2"]
TINY = [*SMALL, "--model", "shufflenet_v2_x0_5"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Where an example runs, without a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])))
    return tmp_path


def run(name: str, *arguments, ranks=0) -> str:
    """What it says, of both outputs."""
    words = EXAMPLES / name, *arguments
    done = programs.ranks(ranks, *words) if ranks else programs.python(*words)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    return said


def given(said: str) -> list[tuple[int, int]]:
    """(batches, images) of each line of loader.stats()."""
    lines = re.findall(r"(\d+) batch(?:es)?, (\d+) images, .* images/s\); next\(\) took .* waiting", said)
    return [(int(batches), int(images)) for batches, images in lines]


def losses(said: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"^epoch \d+: loss ([\d.]+)", said, re.MULTILINE)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """What make_photos.py writes."""
    root = tmp_path_factory.mktemp("made") / "photos"
    run("make_photos.py", root, "--train", TRAIN, "--val", VAL, "--size", 48)
    return root


def test_made_photos_are_folders_of_classes(photos):
    for part, count in ("train", TRAIN), ("val", VAL):
        files = {folder.name: len(list(folder.glob("*.jpg"))) for folder in (photos / part).iterdir()}
        assert files == {"class_0": count // 2, "class_1": count // 2}


def test_cifar10(place):
    """Through both loaders, as the benchmark runs it."""
    options = ["--samples", 256, "--width", 4, "--batch-size", 32, "--epochs", 3, "--workers", 1]
    said = run("../benchmarks/recipes.py", "cifar10", "--seeds", 1, "--json", "out.json", "--synthetic", *options)
    for found in losses(said)[:3], losses(said)[3:]:
        assert len(found) == 3 and found[-1] < found[0]
    assert len(re.findall(r"^accuracy 0\.\d{4} after \d+\.\d s of training$", said, re.MULTILINE)) == 2
    assert given(said) == [(24, 768)]  # dali_compat's
    rounds = json.loads((place / "out.json").read_text())["rounds"]
    assert [row["case"] for row in rounds] == ["torchvision", "dali_compat"]
    for row in rounds:
        assert len(row["seconds"]) == len(row["images_per_s"]) == 3 and 0 < row["accuracy"] < 1
        assert (row["in_next"] is None) is (row["case"] == "torchvision")


@pytest.mark.parametrize("loader", ["dali_compat", "torchvision"])
def test_dogs_cats(photos, loader):
    said = run("dogs_cats.py", photos / "train", *TINY, "--from-scratch", "--loader", loader)
    assert len(re.findall(r"^epoch \d: \d+\.\d\d s, \d+ images/s, accuracy [01]\.\d{4}$", said, re.MULTILINE)) == 2
    steps = (TRAIN - 4) // BATCH  # every tenth of 32 photos is for validation
    assert given(said) == ([(2 * steps, 2 * steps * BATCH)] if loader == "dali_compat" else [])


def test_simclr(photos, place):
    said = run("simclr.py", photos / "train", *TINY, "--save", "encoder.pt")
    assert len(losses(said)) == 2 and "views" in said
    assert given(said) == [(2 * TRAIN // BATCH, 2 * TRAIN)]
    weights = torch.load(place / "encoder.pt")
    assert "conv1.0.weight" in weights and not any(name.startswith("fc.") for name in weights)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """Photos with masks and boxes."""
    root = tmp_path_factory.mktemp("made") / "shapes"
    run("make_photos.py", root, "--voc", "--train", 12, "--val", 4, "--size", 64)
    return root


@pytest.mark.parametrize("loader, epochs", [("dali_compat", 2), ("torchvision", 1)])
@pytest.mark.parametrize("name, metric", [("segmentation.py", "mIoU"), ("detection.py", "AP50")])
def test_photos_with_masks_and_boxes(shapes, loader, epochs, name, metric):
    size = ["--size", 64] if name == "segmentation.py" else []
    options = ["--batch-size", 4, "--epochs", epochs, "--workers", 1, "--loader", loader]
    said = run(name, shapes, *size, *options)
    assert (
        len(re.findall(rf"^epoch \d: loss \d+\.\d+, {metric} [01]\.\d{{4}}, \d+ images/s$", said, re.MULTILINE))
        == epochs
    )
    assert given(said) == ([(6, 24)] if loader == "dali_compat" else [])
    assert ("DALI route on cpu" in said) is (loader == "dali_compat")


def test_the_average_precision_of_boxes(monkeypatch):
    """Of two boxes one is found, after a wrong one; of another class one, and a second time."""
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
    """What it says in its only line."""
    done = programs.python(EXAMPLES / name, *arguments)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name, module", [("ignite_trainer.py", "ignite"), ("lightning_classifier.py", "lightning")])
def test_resume_in_mid_epoch_and_without_a_checkpoint_and_with_nothing_left(photos, name, module):
    pytest.importorskip(module)
    assert refused(name, photos, *TINY, "--resume").startswith("--resume: there is no checkpoint checkpoints/last.")
    said = run(name, photos, *TINY, "--save-every", 3)
    assert given(said) == 2 * [(TRAIN // BATCH, TRAIN)] and (module != "ignite" or "ms a step, accuracy" in said)
    said = run(name, photos, *TINY, "--save-every", 4, "--resume")  # which is after the last step, too
    assert given(said) == [(2, 2 * BATCH)]  # of the second epoch's four batches two are left
    assert {"ignite": "resuming after 6 steps", "lightning": "after 8 steps"}[module] in said
    said = refused(name, photos, *TINY, "--save-every", 4, "--resume")
    assert said.startswith("--resume: all 2 epochs of checkpoints/last.") and said.endswith(
        (" to train on", " begins anew")
    )
    if module == "ignite":  # Lightning's schedule is of two epochs
        assert len(given(run(name, photos, *TINY, "--save-every", 4, "--resume", "--epochs", 3))) == 1


def test_dogs_cats_without_the_network(photos, place, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(place))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    said = refused("dogs_cats.py", photos / "train", *SMALL)
    assert said.startswith("ImageNet's weights cannot be downloaded") and "--from-scratch" in said


def test_accelerate(photos, place):
    """As the benchmark runs it."""
    pytest.importorskip("accelerate")
    options = ["--data", photos / "train", "--only", "accelerate_loop", "--json", "out.json"]
    said = run("../benchmarks/frameworks.py", *options, *TINY)
    result = json.loads((place / "out.json").read_text())
    (row,) = result["rounds"]
    assert len(row["images_per_s"]) == len(row["in_next"]) == 2 and result["images"]["files"] == TRAIN
    assert all(rate > 0 for rate in row["images_per_s"]) and all(0 <= share < 1 for share in row["in_next"])
    assert "| accelerate_loop | " in said


def test_accelerate_on_two_ranks(photos, monkeypatch):
    """As by torchrun, which ``accelerate launch`` starts for several GPUs: each rank has its half."""
    pytest.importorskip("accelerate")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    said = run("accelerate_loop.py", photos, *TINY, ranks=2)
    assert given(said) == 2 * [(TRAIN // BATCH // 2, TRAIN // 2)]
    assert len(re.findall(r"^epoch \d: accuracy [01]\.\d{3}$", said, re.MULTILINE)) == 2


@pytest.mark.filterwarnings("ignore")
def test_hugging_face(photos, place):
    transformers_module()
    said = run("huggingface_trainer.py", photos, *SMALL)
    assert re.search(r"^\S*huggingface_trainer.py:\d+ runs on DALI \(cpu\)$", said, re.MULTILINE)
    assert said.count("'eval_accuracy'") == 2 and (place / "checkpoints" / "model.safetensors").exists()


@pytest.mark.filterwarnings("ignore")
def test_ray(photos):
    """Two workers in Ray's local mode, which starts no cluster: that takes a dozen processes, most with torch."""
    pytest.importorskip("ray.train.torch")
    said = run("ray_train.py", photos, *TINY, "--workers", 0, ranks=2)
    assert len(re.findall(r"last epoch: \{'loss': [\d.]+, 'images_per_second': [\d.]+, 'waited': 0\.\d+\}", said)) == 2
    assert given(said) == 4 * [(TRAIN // BATCH // 2, TRAIN // 2)]  # two workers' lines of two epochs


@pytest.mark.filterwarnings("ignore")
def test_a_function_for_rays_workers_is_pickled_by_its_source(monkeypatch):
    """As a program's functions are, with all the globals that they name."""
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


def test_the_notebook_is_executed_and_has_its_picture(notebook):
    assert [cell["execution_count"] for cell in code(notebook)] == list(range(1, len(code(notebook)) + 1))
    outputs = [output for cell in code(notebook) for output in cell["outputs"]]
    assert not any(output["output_type"] == "error" for output in outputs)
    assert "image/jpeg" in outputs[-1]["data"]


@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs(place):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    whole, small = "IMAGES, BATCH, ROUNDS = 256, 32, 3", "IMAGES, BATCH, ROUNDS = 16, 8, 1"
    assert whole in notebook.cells[1].source
    notebook.cells[1].source = notebook.cells[1].source.replace(whole, small)
    resources = {"metadata": {"path": str(place)}}
    nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3", resources=resources).execute()
    said = "".join(output.get("text", "") for cell in code(notebook) for output in cell["outputs"])
    assert "with exact=True: 0 at most" in said
    (plan,) = [output["data"]["text/html"] for output in code(notebook)[1]["outputs"]]
    assert "DALI route on cpu" in plan and "without effect" not in plan
    assert len(re.findall(r"torchvision \d+ images/s, dali_compat \d+ images/s, ratio \d", said)) == 1
    assert given(said) == [(4, 32)]


# ---- what is said of them


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "make_photos.py"])
def test_the_first_lines_tell_what_to_expect(name):
    said = ast.get_docstring(ast.parse((EXAMPLES / name).read_text()))
    assert re.search(rf"^    python examples/{name} ", said, re.MULTILINE)
    assert "\nReproduces: " in said and "\nMeasured: " in said


def pages() -> str:
    """That of all examples, and one of each recipe."""
    docs = REPOSITORY / "docs"
    return "\n".join(path.read_text() for path in [docs / "examples.md", *sorted(docs.glob("recipe-*.md"))])


def test_every_example_is_in_the_pages():
    page = pages()
    assert len(SCRIPTS) > 5
    for name in [*SCRIPTS, "notebook.ipynb"]:
        assert f"examples/{name}" in page, name


def test_commands_have_the_options_that_examples_take():
    said = [pages(), *(ast.get_docstring(ast.parse((EXAMPLES / name).read_text())) for name in SCRIPTS)]
    commands = re.findall(r"examples/(\w+\.py)([^\n`&#]*)", "\n".join(said))
    assert {name for name, _ in commands} == set(SCRIPTS)
    for name, rest in commands:
        for option in re.findall(r"--[\w-]+", rest):
            assert f'"{option}"' in (EXAMPLES / name).read_text(), (name, option)
