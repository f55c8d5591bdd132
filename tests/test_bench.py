"""python -m dali_compat bench: it runs, and names a limit."""

import multiprocessing
import re
import sys

import pytest
import torch
from PIL import Image
from torchvision import transforms as T
from tqdm import tqdm

from dali_compat import cli
from dali_compat.archives.pack import pack
from dali_compat.cli import bench, limits, timing

SMALL = "T.Compose([T.Resize((16, 16)), T.ToTensor()])"


def _bench(*words):
    small = ["--batch-size", "4", "--batches", "3", "--device", "cpu"]
    return cli.main(["bench", *map(str, words), *small])


def _refused(capsys, said, *words):
    with pytest.raises(SystemExit) as stop:
        _bench(*words)
    assert stop.value.code == 2 and said in capsys.readouterr().err


def _limits(said: str) -> dict[str, str]:
    """{case: what limits} of the printed table."""
    return dict(
        re.findall(
            r"^(loading alone|beside a step of [\d.]+ ms) .* (busy machine|Python|disk|CPU|decoder|host|model)\s*$",
            said,
            re.M,
        )
    )


@pytest.mark.parametrize("transform", ["train", "eval", SMALL])
def test_bench_of_a_folder(image_root, capsys, monkeypatch, transform):
    """What limits hangs on the machine; but each limit that is named has its reason, and advice."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert _bench(image_root, "--transform", transform, "--step", 5, 20) == 0
    said, bar = capsys.readouterr()
    total = 2 * (3 + 3) + 2 * (3 + 3 + 3)  # twice loading alone, each step alone, and with batches; 3 are ahead
    assert f"0/{total} [" in bar and "measuring" in bar and "measuring" not in said
    found = _limits(said)
    assert len(found) == 3 and found["loading alone"] != limits.MODEL
    assert "What to change:\n" in said and "DALI route on cpu" in said
    for name in set(found.values()):
        assert re.search(rf"^{name}: ", said, re.M) and re.search(rf"^  {name}: ", said, re.M)


@pytest.fixture
def measured(monkeypatch):
    """As if a batch took 100 ms to load, of which the calling thread worked for 90. A step is slower beside loading by
    what it is shorter than that. Gives the lengths of the steps, in ms."""
    steps = []

    def beside(self, milliseconds):
        steps.append(milliseconds)
        return limits.Beside(milliseconds / 1e3, max(0.1, milliseconds / 1e3))

    monkeypatch.setattr(timing.Passes, "one", lambda self: timing.Pass(0.1, 0.09, 0.09))
    monkeypatch.setattr(timing.Passes, "beside", beside)
    monkeypatch.setattr(timing.SampledFiles, "read", lambda self, threads: 0.03)  # 12 files, 3 batches
    return steps


def test_what_limits_is_what_was_measured(image_root, capsys, measured):
    assert _bench(image_root, "--transform", SMALL, "--step", 50, 400) == 0
    said = capsys.readouterr().out
    assert _limits(said) == {
        "loading alone": limits.HOST,
        "beside a step of 50.0 ms": limits.HOST,
        "beside a step of 400.0 ms": limits.MODEL,
    }
    assert "host: the calling thread's Python is at work for 90% of the time\n" in said
    assert "  host: larger batches (now 4)" in said and "  model: nothing: " in said
    assert re.search(r"^loading alone +40 +host$", said, re.M)
    assert re.search(r"^beside a step of 50.0 ms +40 of 80 +host$", said, re.M)


def test_the_page_has_what_is_printed(image_root, tmp_path, capsys, measured):
    out = tmp_path / "bench.html"
    assert _bench(image_root, "--step", 200, "--out", out) == 0
    said, shown = capsys.readouterr().out, out.read_text()
    assert str(out) in said and "DALI route on cpu" in shown and "What to change" in shown
    assert 'class="bar limits"><div style="width:90.0%"' in shown  # the calling thread
    assert shown.count('class="row"') == 6 and "loading alone" in shown and "<b>host</b>" in shown
    _refused(capsys, "cannot be written", image_root, "--out", tmp_path / "nowhere" / "bench.html")


def test_steps_are_chosen_by_the_loader(image_root, measured):
    assert _bench(image_root, "--transform", SMALL) == 0
    assert measured == pytest.approx([50, 100, 200])


def test_the_bar_counts_every_batch(image_root, monkeypatch, capsys):
    bars = []

    class Bar(tqdm):
        def close(self):
            bars.append((self.n, self.total))
            super().close()

    monkeypatch.setattr(bench, "tqdm", Bar)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert _bench(image_root, "--transform", SMALL, "--workers", 1, "--prefetch-factor", 3) == 0
    assert bars[0] == (2 * 7 + 3 * (3 + 7), 2 * 7 + 3 * (3 + 7))


@pytest.mark.parametrize("file", ["all.rec", "all.tfrecord", "all.tar"])
def test_bench_of_an_archive(image_root, tmp_path, capsys, file):
    pack(image_root, tmp_path / file)
    assert _bench(tmp_path / file, "--transform", SMALL, "--step", 5) == 0
    assert len(_limits(capsys.readouterr().out)) == 2


def test_bench_of_a_table(image_root, tmp_path, capsys):
    files = sorted(image_root.rglob("*.*"))
    (tmp_path / "train.csv").write_text(
        "\n".join(["path", *(str(file.relative_to(image_root)) for file in files)]) + "\n"
    )
    words = ["--option", "image=path", "--option", f"root={image_root}", "--transform", SMALL, "--step", 5]
    assert _bench(tmp_path / "train.csv", *words) == 0
    assert len(_limits(capsys.readouterr().out)) == 2
    (tmp_path / "train.csv").write_text("path\ngone.jpg\n")
    _refused(capsys, "1 of 1 files are missing", tmp_path / "train.csv", *words)


def test_what_python_calls_is_told(image_root, tmp_path, capsys, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torchvision import transforms as T\n"
        "class Busy:\n"
        "    def __call__(self, image):\n"
        "        return image.flip(0)\n"
        "transform = T.Compose([T.Resize((16, 16)), T.ToTensor(), Busy()])\n"
    )
    given = lambda **times: monkeypatch.setattr(timing.Passes, "one", lambda self, step=None: times_of(**times))  # noqa: E731
    times_of = lambda **times: timing.Pass(**{"seconds": 0.1, "host": 0.01, "cpu": 0.02} | times)  # noqa: E731
    monkeypatch.setattr(bench, "usable_cores", lambda: 2)
    words = "--transform", f"{tmp_path}/mine.py:transform", "--step", 5

    def limit_of(**times):
        given(**times)
        assert _bench(image_root, *words) == 0
        said = capsys.readouterr().out
        return _limits(said)["loading alone"], said

    found, said = limit_of(waited=0.08)  # for functions that sleep, or for processes that call them
    assert found == limits.PYTHON and "Python: functions called sample by sample take 90% of the time" in said
    assert "  Python: a transform that translates, or a registered one: " in said and "Busy" in said
    assert "  Python: num_workers=2 (now 0): one process a core calls it\n" in said
    found, said = limit_of(waited=0.01, others=0.16)
    assert found == limits.BUSY_MACHINE and "busy machine: other programs have 80% of the 2 cores\n" in said
    words = "--transform", SMALL, "--step", 5
    assert limit_of(waited=0.08)[0] == limits.DECODER  # nothing is called


def test_what_others_take_is_measured():
    """Of the processor time of all, this process's and its workers' is none of theirs."""
    before, all_before = timing._processor_time(), timing._everybodys_time()
    worker = multiprocessing.get_context("fork").Process(target=_spin)
    worker.start()
    while timing._processor_time() < before + 0.3:  # it is alive, and counted
        assert worker.is_alive()
    worker.terminate()
    worker.join()
    assert timing._processor_time() >= before + 0.3  # and it is not forgotten
    assert timing._everybodys_time() >= all_before + 0.2


def _spin():
    while True:
        pass


@pytest.mark.parametrize(
    "words, said",
    [
        (["--transform", "nothing"], "--transform nothing: NameError"),
        (["--step", "0"], "--step is above 0"),
        (["--workers", "-1"], "start at 1"),
        (["--prefetch-factor", "2"], "needs --workers"),
        (["--prefetch-factor", "0", "--workers", "1"], "--prefetch-factor starts at 1"),
    ],
)
def test_mistakes_are_told(image_root, words, said, capsys):
    _refused(capsys, said, image_root, *words)


def test_a_folder_without_images(tmp_path, capsys):
    _refused(capsys, "bench: ", tmp_path)


def test_reading_counts_the_bytes(image_root):
    from dali_compat import DALIImageFolder

    dataset = DALIImageFolder(image_root, T.ToTensor())
    files = timing.SampledFiles(dataset, 10)
    files.drop()
    assert files.read(2) > 0
    assert files.bytes == sum(len(open(dataset.samples[i][0], "rb").read()) for i in files.indices)
    images = [Image.open(dataset.samples[i][0]) for i in files.indices]
    assert files.pixels() == sum(3 * image.width * image.height for image in images)
    assert files.share == 10 / len(dataset)


def test_a_step_takes_as_long_as_it_says():
    step = timing.synthetic_step(50, torch.device("cpu"))
    measured = timing.time.perf_counter()
    step(None)
    assert timing.time.perf_counter() - measured >= 0.05


class _Event:
    """Of a GPU that takes 64 ms for 256 products."""

    def __init__(self, enable_timing):
        pass

    record = synchronize = lambda self: None

    def elapsed_time(self, end):
        return 64.0


def test_a_step_on_a_gpu_has_as_many_products_as_take_so_long(monkeypatch):
    products = []
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch, "randn", lambda *sizes, **options: torch.zeros(2, 2))
    monkeypatch.setattr(torch, "mm", lambda *args, **options: products.append(args))
    step = timing.synthetic_step(20, torch.device("cuda"))
    products.clear()
    step(torch.ones(2, 3, 4, 4))
    assert len(products) == 80


@pytest.mark.gpu
def test_a_step_on_a_gpu():
    device = torch.device("cuda", torch.cuda.current_device())
    step = timing.synthetic_step(20, device)
    for images in (None, torch.zeros(2, 3, 4, 4, device=device)):
        step(images)
    torch.cuda.synchronize()
