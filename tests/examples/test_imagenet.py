"""examples/imagenet with tiny folders: training, interrupts, and resuming, on one and two ranks."""

import contextlib
import csv
import importlib
import math
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import programs
import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp
import yaml
from conftest import REPOSITORY
from helpers import make_folder
from torch import nn
from torch.distributed.run import get_args_parser

from dali_compat.archives.pack import pack

pytestmark = pytest.mark.filterwarnings("ignore:Unable to enable fault handler")  # pytest replaces stderr
EXAMPLE = REPOSITORY / "examples" / "imagenet"
IMAGES, BATCH = 24, 2  # each image is the only one of its class, so its label identifies it
SMALL = f"--size 32 --val-size 32 --val-resize 36 --batch-size {BATCH} --workers 1 --amp none --epochs 1 --warmup 0"


class Tiny(nn.Module):
    """A network that accepts images of any size and takes a millisecond."""

    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 4), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8, classes))

    def forward(self, images):
        return self.head(self.stem(images))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder whose train and val have the same images."""
    root = tmp_path_factory.mktemp("imagenet")
    make_folder(root / "train", classes=IMAGES, per_class=1, low=40, high=60, special=False)
    (root / "val").symlink_to("train")
    return root


@pytest.fixture
def example(monkeypatch):
    """Import the example's modules by their names, and restore global state afterwards."""
    names = [path.stem for path in EXAMPLE.glob("*.py")]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(EXAMPLE)
    signals, threads = (signal.SIGTERM, signal.SIGINT), torch.get_num_threads()
    before = [signal.getsignal(number) for number in signals]
    precision, chooses = torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark
    torch.set_num_threads(1)
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    for number, handler in zip(signals, before, strict=True):
        signal.signal(number, handler)
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.benchmark = chooses
    if dist.is_initialized():  # after an error
        dist.destroy_process_group()
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def run(example, folder, tmp_path, monkeypatch):
    """Return a function that trains Tiny in this process: ``run(words, stop=n)``.

    It returns the batches seen and the contents of the run's folder. ``stop`` is the number of steps before a signal,
    and ``crash`` the number before an error.
    """
    monkeypatch.setattr(example.model, "create", lambda name, classes, arguments: Tiny(classes))
    train_step = example.train.Training.train_step

    def run(words="", out="run", stop=None, crash=None, data=folder):
        if dist.is_initialized():  # left by a run that crashed
            dist.destroy_process_group()
        seen, shapes, out = [], [], tmp_path / out

        def step(self, images, labels):
            if len(seen) == stop:
                os.kill(os.getpid(), signal.SIGTERM)
            if len(seen) == crash:
                raise RuntimeError("a crash")
            seen.append((self.epoch, labels.tolist()))
            shapes.append(tuple(images.shape))
            return train_step(self, images, labels)

        monkeypatch.setattr(example.train.Training, "train_step", step)
        example.train.main(f"--data {data} --out {out} {SMALL} {words}".split())
        checkpoint = torch.load(out / "checkpoint.pt", weights_only=True) if (out / "checkpoint.pt").exists() else None
        rows = list(csv.DictReader((out / "log.csv").open()))
        return SimpleNamespace(seen=seen, shapes=shapes, out=out, checkpoint=checkpoint, rows=rows)

    return run


def epochs_of(seen):
    """Return {epoch: labels in order}."""
    found = {}
    for epoch, labels in seen:
        found.setdefault(epoch, []).extend(labels)
    return found


def same(one, other):
    """Return True if two checkpoints are equal bit for bit, except for the loader's position."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        return all(same(one[name], other[name]) for name in one if name != "loader")
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


# ---- one rank


def test_a_synthetic_run_on_the_cpu_lowers_the_loss(example, tmp_path, capsys):
    """The command of the docstring, with a smaller network."""
    out = tmp_path / "run"
    words = "--synthetic --config configs/resnet18.yaml --model shufflenet_v2_x0_5 --lr 0.3 --ema 0.5 --save-every 2"
    example.train.main(f"{words} --epochs 3 --out {out}".split())
    rows, printed = list(csv.DictReader((out / "log.csv").open())), capsys.readouterr()
    assert [int(row["epoch"]) for row in rows] == [0, 1, 2] and rows[0].keys() == set(example.log.COLUMNS)
    assert float(rows[2]["train_loss"]) < 0.8 * float(rows[0]["train_loss"])
    assert float(rows[2]["images_per_s"]) > 0 and 0 < float(rows[2]["waited"]) < 1
    best = max(float(row[name]) for row in rows for name in ("val_top1", "ema_top1"))
    assert torch.load(out / "checkpoint.pt", weights_only=True)["best"] == pytest.approx(best)
    network = example.model.create("shufflenet_v2_x0_5", 4, {})
    network.load_state_dict(torch.load(out / "best.pt", weights_only=True))
    assert "DALI route on cpu" in printed.out and "epoch 3: top-1" in printed.out
    assert "loss" in printed.err and "images/s" in printed.err and "waits" in printed.err
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = events.EventAccumulator(str(out)).Reload()
    assert [event.step for event in found.Scalars("epoch/val_top1")] == [64, 128, 192]


@pytest.mark.parametrize("path", sorted((EXAMPLE / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_configs_name_models_and_options(example, path):
    options = example.options.parse(["--config", f"configs/{path.name}", "--data", "x", "--epochs", "7"])
    config = yaml.safe_load(path.read_text())
    assert options.epochs == 7 != config["epochs"]
    assert all(getattr(options, name) == pytest.approx(float(config[name])) for name in ("lr", "weight_decay"))
    with torch.device("meta"):
        network = example.model.create(options.model, 1000, options.model_args)
    assert 10**6 < sum(parameter.numel() for parameter in network.parameters()) < 10**8


@pytest.mark.parametrize(
    "words, text",
    [
        ("", "where are the images?"),
        ("--data x --config configs/none.yaml", "the example has configs/efficientnet_b0.yaml"),
        ("--data x --config {tmp}", "there is no option 'batchsize'; is it 'batch_size'?"),
        ("--data x --epochs many", "epochs is a int, got 'many'"),
        ("--data x --loader torchvision --on-error replace", "torchvision replaces no image"),
        ("--data x --parallel fsdp --amp fp16", "take --amp bf16"),
    ],
)
def test_invalid_options_are_refused_with_a_reason(example, tmp_path, capsys, words, text):
    config = tmp_path / "own.yaml"
    config.write_text("batchsize: 3\n")
    with pytest.raises(SystemExit):
        example.options.parse(words.format(tmp=config).split())
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("ending", [".rec", ".lmdb", "-000.tar", ".tfrecord"])
def test_archives_in_a_folder_are_found_by_split(example, folder, tmp_path, ending):
    for split in ("train", "val"):
        pack(folder / "train", tmp_path / f"{split}{ending}")
    options = example.options.parse(["--data", str(tmp_path)])
    train, val = example.data.datasets(options)
    kind = {".rec": "DALIRecordIO", ".lmdb": "DALILMDB", "-000.tar": "DALIWebDataset", ".tfrecord": "DALITFRecord"}
    assert type(train).__name__ == type(val).__name__ == kind[ending]
    assert train.targets == val.targets == list(range(IMAGES))
    assert "train" in str(train.files[0]) and "val" in str(val.files[0])


def test_a_missing_split_is_reported(example, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no train set: none of train, train\.rec"):
        example.data.places(str(tmp_path))
    assert example.data.places("a/train.rec") == ("a/train.rec", "a/val.rec")
    assert example.data.places("a/train-*.tar", "b.tar") == ("a/train-*.tar", "b.tar")


def test_training_from_an_archive_equals_training_from_its_folder(run, folder, tmp_path):
    for split in ("train", "val"):
        pack(folder / "train", tmp_path / f"{split}.rec")
    from_folder = run("--augment trivialaugment --erasing 0.5", out="a")
    from_archive = run("--augment trivialaugment --erasing 0.5", out="b", data=tmp_path / "train.rec")
    assert from_archive.seen == from_folder.seen and same(from_archive.checkpoint, from_folder.checkpoint)


def test_both_loaders_give_the_same_images_in_the_same_order(run):
    ours, theirs = run("--epochs 2", out="a"), run("--epochs 2 --loader torchvision --resume", out="b")
    assert ours.seen == theirs.seen
    assert {epoch: sorted(labels) for epoch, labels in epochs_of(ours.seen).items()} == {
        epoch: list(range(IMAGES)) for epoch in (0, 1)
    }
    assert 0 < float(theirs.rows[1]["waited"]) <= 1


def test_image_size_grows_between_epochs(run):
    found = run("--epochs 4 --start-size 32 --size 96 --ramp 0.5")
    assert [shape[2] for shape in found.shapes[:: IMAGES // BATCH]] == [32, 64, 96, 96]
    assert [int(row["size"]) for row in found.rows] == [32, 64, 96, 96]


def test_mixed_labels_sum_to_one(example):
    options = example.options.parse(["--data", "x", "--mixup", "0.2", "--cutmix", "1"])
    torch.manual_seed(0)
    mix = example.data.mixing(options, 5)
    for _ in range(8):
        images, targets = mix(torch.rand(4, 3, 8, 8), torch.arange(4))
        assert images.shape == (4, 3, 8, 8) and targets.sum(1).tolist() == pytest.approx([1] * 4)
    assert example.data.mixing(example.options.parse(["--data", "x"]), 5) is None


def test_learning_rate_depends_on_the_total_batch_size(example):
    options = example.options.parse(["--data", "x", "--lr", "0.1", "--epochs", "10", "--warmup", "2"])
    rates = [example.model.learning_rate(options, epoch, 1024) for epoch in (0, 1, 2, 6, 10)]
    assert rates == pytest.approx([0.002, 0.2, 0.4, 0.2, 0], abs=2e-3)


def test_evaluation_counts_each_image_once(example, folder):
    """Some images appear twice to give all ranks equal shares."""
    options = example.options.parse(f"--data {folder} {SMALL}".split())
    training, totals, shown = example.train.Training.__new__(example.train.Training), [], []
    training.options, training.classes = options, IMAGES

    def total(sums):
        totals.append(sums)
        return sums.tolist()

    class Certain(nn.Module):
        """A model that always predicts the first class."""

        def forward(self, images):
            shown.append(len(images))
            return nn.functional.one_hot(torch.zeros(len(images), dtype=torch.int64), IMAGES).float()

    for rank in range(5):
        training.ranks = SimpleNamespace(world=5, rank=rank, device=torch.device("cpu"), total=total)
        training.val_loader = example.data.loaders(options, training.ranks, *example.data.datasets(options))[1]
        training.evaluate(Certain())
    loss, top1, _, images = torch.stack(totals).sum(0).tolist()
    assert sum(shown) == 25 and images == IMAGES and top1 == 1
    assert loss / IMAGES == pytest.approx(float(torch.tensor([math.e] + [1.0] * 23).sum().log()) - 1 / IMAGES)


# ---- resuming


def test_a_stopped_run_resumes_bit_for_bit(run, capsys):
    """Includes weights, their average, the optimizer and all generators, with dropout and mixing."""
    words = "--epochs 3 --ema 0.9 --mixup 0.2 --cutmix 1 --log-every 3 --start-size 32 --size 64 --ramp 0.5"
    whole = run(words, out="whole")
    # in the second epoch; the signal takes effect two steps later
    stopped = run(words, out="parts", stop=16)
    assert f"stopped in epoch 2, after {6 * BATCH} images; saved: --resume continues" in capsys.readouterr().out
    assert (stopped.checkpoint["epoch"], stopped.checkpoint["seen"]) == (1, 6 * BATCH)
    rest = run(f"{words} --resume", out="parts")
    assert stopped.seen + rest.seen == whole.seen
    assert same(rest.checkpoint, whole.checkpoint)
    assert [row["train_loss"] for row in rest.rows] == [row["train_loss"] for row in whole.rows]


def test_a_second_ctrl_c_ends_the_run_at_once(example):
    ranks, before = example.ranks.Ranks(10), signal.getsignal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    assert ranks.stopping and signal.getsignal(signal.SIGINT) is signal.default_int_handler is not before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    ranks.leave()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_crashed_run_resumes_from_the_last_epoch(run):
    """The image size changes between epochs."""
    words, steps = "--epochs 3 --start-size 32 --size 96 --ramp 0.6", IMAGES // BATCH
    whole = run(words, out="whole")
    with pytest.raises(RuntimeError, match="crash"):
        run(words, out="parts", crash=steps + 2)
    rest = run(f"{words} --resume", out="parts")
    assert rest.seen == whole.seen[steps:] and rest.shapes == whole.shapes[steps:]
    assert same(rest.checkpoint, whole.checkpoint)
    assert [int(row["epoch"]) for row in rest.rows] == [0, 1, 2]


def test_evaluate_prints_the_accuracy_of_the_checkpoint(run, capsys):
    found = run()
    run("--evaluate")
    assert f"top-1 {float(found.rows[-1]['val_top1']):.2%}" in capsys.readouterr().out.splitlines()[-1]


def test_an_existing_run_is_not_overwritten(run, tmp_path):
    run()
    with pytest.raises(FileExistsError, match="--resume continues with it"):
        run()
    with pytest.raises(FileNotFoundError, match="to evaluate"):
        run("--evaluate", out="another")


def test_max_steps_saves_no_checkpoint(run):
    found = run("--epochs 2 --max-steps 3 --save-every 1")
    assert len(found.seen) == 6 and found.checkpoint is None and len(found.rows) == 2


def test_a_nan_loss_ends_the_run(run, capsys):
    with pytest.raises(FloatingPointError, match="a smaller --lr"):
        run("--lr 1e38 --log-every 1")
    assert "rank 0 ends: FloatingPointError" in capsys.readouterr().err


@pytest.mark.parametrize("amp", ["bf16", "fp16"])
def test_lower_precision_trains_and_saves_the_scaler(run, amp):
    """The scale of fp16 is in the checkpoint."""
    found = run(f"--amp {amp} --clip-grad 1 --optimizer adamw --lr 1e-3 --epochs 2")
    assert math.isfinite(float(found.rows[1]["val_loss"])) and ("scale" in found.checkpoint["scaler"]) == (
        amp == "fp16"
    )


# ---- examples/slurm


SRUN = """#!/usr/bin/env bash
while [[ $1 == -* ]]; do shift; done
exec "$@"
"""
TORCHRUN = """#!/usr/bin/env bash
printf '%s\\n' "$@" > "$OUT/torchrun.txt"
"""


class Job:
    """Runs examples/slurm/imagenet.sbatch on one host with substitutes for srun and torchrun."""

    def __init__(self, folder, place):
        self.place = place
        self.shared, self.local, self.out = (place / name for name in ("shared", "local", "run"))
        for made in (self.shared, self.out, place / "bin"):
            made.mkdir()
        for split in ("train", "val"):
            pack(folder / "train", self.shared / f"{split}.rec")

    def run(self, python=f'exec {sys.executable} "$@"'):
        """Run the job and return the finished process; ``python`` is the body of the substitute for python."""
        commands = {"srun": SRUN, "torchrun": TORCHRUN, "scontrol": "#!/bin/sh\necho first; echo second\n"}
        for name, text in (commands | {"python": f"#!/bin/sh\n{python}\n"}).items():
            (self.place / "bin" / name).write_text(text)
            (self.place / "bin" / name).chmod(0o755)
        environment = {"OUT": self.out, "LOCAL": self.local, "XDG_CACHE_HOME": self.place / "cache"}
        environment |= {"PATH": f"{self.place / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": REPOSITORY}
        environment |= {
            "SLURM_JOB_ID": "12345",
            "SLURM_NNODES": "2",
            "SLURM_JOB_NODELIST": "x",
            "SLURM_GPUS_ON_NODE": "8",
        }
        return subprocess.run(
            ["bash", REPOSITORY / "examples" / "slurm" / "imagenet.sbatch", self.shared, "configs/resnet18.yaml"],
            env=os.environ | {name: str(value) for name, value in environment.items()},
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
        )


def test_slurm_job_replaces_incomplete_copies(folder, tmp_path):
    """The archives have no index files, and an earlier job was killed while it copied."""
    job = Job(folder, tmp_path)
    job.local.mkdir()
    (job.local / "train.rec").write_bytes((job.shared / "train.rec").read_bytes()[:100])  # newer than the original
    for _ in range(2):
        done = job.run(python="exit 0")
        assert done.returncode == 0, done.stderr
        assert {path.name for path in job.local.iterdir()} == {path.name for path in job.shared.iterdir()}
        for path in job.shared.iterdir():
            copy = job.local / path.name
            assert copy.read_bytes() == path.read_bytes() and int(copy.stat().st_mtime) == int(path.stat().st_mtime)
    (job.shared / "val.rec").unlink()
    (job.shared / "val.rec").symlink_to("nowhere")
    assert job.run(python="exit 0").returncode != 0


def test_slurm_job_copies_archives_with_their_index_and_trains(run, folder, tmp_path, monkeypatch):
    job = Job(folder, tmp_path)
    shared, local, out = job.shared, job.local, job.out
    done = job.run()
    assert done.returncode == 0 and f"train.rec: {IMAGES} images" in done.stdout, done.stderr
    words = (out / "torchrun.txt").read_text().splitlines()
    script = words.index("examples/imagenet/train.py")
    launcher = " ".join(words[:script])
    assert "--nnodes 2 --nproc-per-node 8" in launcher and "--numa-binding node" in launcher
    assert "--rdzv-endpoint first:22345" in launcher
    parser = get_args_parser()  # torchrun's
    options = {option for action in parser._actions for option in action.option_strings}
    assert {word for word in words[:script] if word.startswith("--")} - options <= {
        "--numa-binding",
        "--shutdown-timeout",
    }

    def scan(*_):
        raise AssertionError("the copy has its index")

    monkeypatch.setattr("dali_compat.archives.index._build", scan)
    found = run(" ".join(words[script + 1 :] + SMALL.split()), data=shared)
    assert found.rows and found.out == out and local.samefile(words[words.index("--data") + 1])


# ---- two ranks

# train.py with Tiny; it logs the batches of each rank, and stops at half of the epoch while a file named "hold" exists
RECORDER = f"""
import os, sys, time
sys.path[:0] = [{str(EXAMPLE)!r}, {str(REPOSITORY / "tests")!r}]
import model, train
from examples.test_imagenet import Tiny
model.create = lambda name, classes, arguments: Tiny(classes)
file = open(f"rank-{{os.environ['RANK']}}.txt", "w", buffering=1)
print(os.getpid(), file=file)
train_step = train.Training.train_step
def step(self, images, labels):
    print(self.seen, *labels.tolist(), file=file)
    while self.seen >= 12 and os.path.exists("hold"):
        time.sleep(0.02)
    return train_step(self, images, labels)
train.Training.train_step = step
train.main()
"""
# The same on two ranks as forks of an interpreter that has imported torch, which starts faster than torchrun
FORKS = """
import os, sys, torch
torch.set_num_threads(1)
os.dup2(os.open("errors.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
pids = []
for rank in range(2):
    pids.append(os.fork())
    if not pids[-1]:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
        break
else:
    sys.exit(any([os.waitpid(pid, 0)[1] for pid in pids]))
"""


def _run(command, errors, options):
    with open(errors, "w") as file:
        return subprocess.run(command, stderr=file, **options)


class Launched:
    """Two ranks of the recorder, started by torchrun or as forks."""

    def __init__(self, place, folder, words, torchrun):
        self._place, self.out = place, place / "run"
        (place / "hold").touch()
        words = ["--data", str(folder), "--out", str(self.out), *SMALL.split(), *words.split()]
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # on a free port
        address = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        self._pool = ThreadPoolExecutor(1)
        if torchrun:
            (place / "recorder.py").write_text(RECORDER)
            launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
            paths = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
            environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
            options = dict(env=environment, cwd=place, stdout=subprocess.DEVNULL)
            self._program = self._pool.submit(_run, [*launcher, "recorder.py", *words], place / "errors.txt", options)
        else:
            code = f"import os\nos.chdir({str(place)!r})\nos.environ |= {address}\n{FORKS}{RECORDER}"
            self._program = self._pool.submit(programs.run, code, *words)

    def errors(self):
        file = self._place / "errors.txt"
        return file.read_text() if file.exists() else ""

    def lines(self, rank):
        """Return the numbers of each complete line: first the process id, then images seen before a step and its
        labels."""
        file = self._place / f"rank-{rank}.txt"
        text = file.read_text().rpartition("\n")[0] if file.exists() else ""
        return [list(map(int, line.split())) for line in text.splitlines()]

    def wait_for(self, what, seconds=200):
        end = time.monotonic() + seconds
        while not what():
            assert not self._program.done() and time.monotonic() < end, self.errors()
            time.sleep(0.02)

    def kill(self, rank, number):
        """Send a signal to a rank before half of the epoch is over, and let the others continue."""
        assert (self._place / "hold").exists()
        os.kill(self.lines(rank)[0][0], number)
        (self._place / "hold").unlink()

    def end(self):
        """Return the exit code. Exiting takes long on a busy machine; a hang would last --timeout."""
        return self._program.result(150).returncode

    def seen_until(self, count):
        """Return the labels of the first ``count`` images of the epoch."""
        rows = self.lines(0)[1:] + self.lines(1)[1:]
        return [label for seen, *labels in rows if seen < count for label in labels]

    def close(self):
        for rank in (0, 1):
            with contextlib.suppress(ProcessLookupError, IndexError):
                if not self._program.done():
                    os.kill(self.lines(rank)[0][0], signal.SIGKILL)
        self._pool.shutdown()


@pytest.fixture
def launch(folder, tmp_path):
    """Return a function that starts two ranks, which are killed at the end of the test."""
    launched = []

    def launch(words, torchrun=False):
        launched.append(Launched(tmp_path, folder, words, torchrun))
        return launched[-1]

    yield launch
    for one in launched:
        one.close()


@pytest.mark.parametrize("torchrun, words", [(True, ""), (False, "--parallel fsdp --ema 0.9")], ids=["ddp", "fsdp"])
def test_a_killed_rank_ends_the_run_which_resumes_on_one_rank(launch, run, torchrun, words):
    """There is an error message, and each image of the epoch appears once."""
    if "fsdp" in words and not hasattr(torch.distributed.fsdp, "fully_shard"):
        pytest.skip("needs torch 2.6")
    launched = launch(f"{words} --save-every 2", torchrun)
    launched.wait_for(lambda: (launched.out / "checkpoint.pt").exists())
    launched.kill(1, signal.SIGKILL)
    assert launched.end() != 0
    assert "rank 0 ends: " in launched.errors() and "--resume continues from it" in launched.errors()
    assert "Signal 9 (SIGKILL)" in launched.errors() or not torchrun
    check_resume_on_one_rank(launched, run, words)


def check_resume_on_one_rank(launched, run, words):
    rest = run(f"{words} --resume")
    before = launched.seen_until(IMAGES - BATCH * len(rest.seen))
    assert 0 < len(before) < IMAGES and len(before) % (2 * 2 * BATCH) == 0
    assert sorted(before + epochs_of(rest.seen)[0]) == list(range(IMAGES))
    assert len(rest.rows) == 1 and rest.checkpoint["epoch"] == 1


@pytest.mark.gpu
@pytest.mark.parametrize("words", ["", "--parallel fsdp --ema 0.9"], ids=["ddp", "fsdp"])
def test_a_killed_gpu_rank_ends_the_run_which_resumes_on_one_gpu(launch, run, words):
    """The message is torchrun's, because a rank that waits for gradients of a dead one blocks in NCCL."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    launched = launch(f"{words} --save-every 2", torchrun=True)
    launched.wait_for(lambda: (launched.out / "checkpoint.pt").exists())
    launched.kill(1, signal.SIGKILL)
    assert launched.end() != 0 and "Signal 9 (SIGKILL)" in launched.errors()
    check_resume_on_one_rank(launched, run, words)


def test_a_rank_that_hangs_ends_the_run(launch):
    launched = launch("--timeout 20")  # longer than ranks wait for each other on a busy machine
    launched.wait_for(lambda: len(launched.lines(1)) > 2)
    launched.kill(1, signal.SIGSTOP)
    launched.wait_for(lambda: "rank 0 ends: " in launched.errors())
    os.kill(launched.lines(1)[0][0], signal.SIGCONT)
    assert launched.end() != 0 and "rank 1 ends: " in launched.errors()


def test_a_stop_signal_to_one_rank_stops_all_and_saves(launch, run):
    launched = launch("--log-every 2")
    launched.wait_for(lambda: len(launched.lines(0)) > 2)
    launched.kill(1, signal.SIGTERM)
    assert launched.end() == 0
    seen = torch.load(launched.out / "checkpoint.pt", weights_only=True)["seen"]
    assert 0 < seen < IMAGES
    rest = run("--resume")
    assert sorted(launched.seen_until(seen) + epochs_of(rest.seen)[0]) == list(range(IMAGES))
