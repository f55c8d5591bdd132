"""python -m dali_compat bench: measurements, the limit it reports, and its error messages."""

import multiprocessing
import re
import sys

import pytest
from torchvision import transforms as T
from tqdm import tqdm

from dali_compat import cli
from dali_compat.archives.pack import pack
from dali_compat.cli import bench, limits, timing

SMALL = "T.Compose([T.Resize((16, 16)), T.ToTensor()])"


def _bench(*words):
    small = ["--batch-size", "4", "--batches", "3", "--device", "cpu"]
    return cli.main(["bench", *map(str, words), *small])


def _refused(capsys, output, *words):
    with pytest.raises(SystemExit) as stop:
        _bench(*words)
    assert stop.value.code == 2 and output in capsys.readouterr().err


LIMIT = re.compile(r"^(busy machine|Python|disk|CPU|decoder|host): (.*)$", re.MULTILINE)


@pytest.mark.parametrize("transform", ["train", "eval", SMALL])
def test_bench_of_a_folder_names_its_limit_with_the_reason_and_advice(image_root, capsys, monkeypatch, transform):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert _bench(image_root, "--transform", transform) == 0
    output, bar = capsys.readouterr()
    assert f"0/{2 * (3 + 3)} [" in bar and "measuring" in bar and "measuring" not in output  # 3 batches are prefetched
    ((_, why),) = LIMIT.findall(output)
    assert why and "DALI route on cpu" in output and re.search(r"^loading +[\d,]+$", output, re.M)
    assert output.partition("What to change:\n")[2].startswith("  ")


def test_bench_prints_what_was_measured(image_root, capsys, monkeypatch):
    """A batch takes 100 ms to load, and the calling thread is busy for 90 of them."""
    monkeypatch.setattr(timing.Passes, "one", lambda self: timing.Pass(0.1, 0.09, 0.09))
    monkeypatch.setattr(timing.SampledFiles, "read", lambda self, threads: 0.03)  # 12 files, 3 batches
    assert _bench(image_root, "--transform", SMALL) == 0
    output = capsys.readouterr().out
    assert LIMIT.findall(output) == [("host", "the calling thread's Python is busy for 90% of the time")]
    assert "What to change:\n  larger batches (now 4)" in output and re.search(r"^loading +40$", output, re.M)


def test_progress_bar_counts_every_batch(image_root, monkeypatch, capsys):
    bars = []

    class Bar(tqdm):
        def close(self):
            bars.append((self.n, self.total))
            super().close()

    monkeypatch.setattr(bench, "tqdm", Bar)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert _bench(image_root, "--transform", SMALL, "--workers", 1, "--prefetch-factor", 3) == 0
    assert bars[0] == (2 * 7, 2 * 7)


@pytest.mark.parametrize("file", ["all.rec", "all.tfrecord", "all.tar"])
def test_bench_of_an_archive_names_one_limit(image_root, tmp_path, capsys, file):
    pack(image_root, tmp_path / file)
    assert _bench(tmp_path / file, "--transform", SMALL) == 0
    assert len(LIMIT.findall(capsys.readouterr().out)) == 1


def test_bench_of_a_table_names_one_limit_and_reports_missing_files(image_root, tmp_path, capsys):
    files = sorted(image_root.rglob("*.*"))
    (tmp_path / "train.csv").write_text(
        "\n".join(["path", *(str(file.relative_to(image_root)) for file in files)]) + "\n"
    )
    words = ["--option", "image=path", "--option", f"root={image_root}", "--transform", SMALL]
    assert _bench(tmp_path / "train.csv", *words) == 0
    assert len(LIMIT.findall(capsys.readouterr().out)) == 1
    (tmp_path / "train.csv").write_text("path\ngone.jpg\n")
    _refused(capsys, "1 of 1 files are missing", tmp_path / "train.csv", *words)


def test_bench_names_the_transform_that_python_calls_as_the_limit(image_root, tmp_path, capsys, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import torch\nfrom torchvision import transforms as T\n"
        "class Busy:\n"
        "    def __call__(self, image):\n"
        "        return image.flip(0)\n"
        "transform = T.Compose([T.Resize((16, 16)), T.ToTensor(), Busy()])\n"
    )
    given = lambda **times: monkeypatch.setattr(timing.Passes, "one", lambda self: times_of(**times))  # noqa: E731
    times_of = lambda **times: timing.Pass(**{"seconds": 0.1, "host": 0.01, "cpu": 0.02} | times)  # noqa: E731
    monkeypatch.setattr(bench, "usable_cores", lambda: 2)
    words = "--transform", f"{tmp_path}/mine.py:transform"

    def limit_of(**times):
        given(**times)
        assert _bench(image_root, *words) == 0
        output = capsys.readouterr().out
        return LIMIT.findall(output)[0][0], output

    found, output = limit_of(waited=0.08)  # for functions that wait, or for processes that call them
    assert found == limits.PYTHON and "Python: functions called sample by sample take 90% of the time" in output
    assert "  a transform that DALI supports, or a registered translation: " in output and "Busy" in output
    assert "  num_workers=2 (now 0): one worker process per core\n" in output
    found, output = limit_of(waited=0.01, others=0.16)
    assert found == limits.BUSY_MACHINE and "busy machine: other programs use 80% of the 2 cores\n" in output
    words = "--transform", SMALL
    assert limit_of(waited=0.08)[0] == limits.DECODER


def test_processor_time_counts_workers_as_this_process():
    """The time of other processes excludes this process and its workers."""
    before, all_before = timing._cpu_time(), timing._cpu_time_of_all()
    worker = multiprocessing.get_context("fork").Process(target=_spin)
    worker.start()
    while timing._cpu_time() < before + 0.3:  # its time counts while it runs
        assert worker.is_alive()
    worker.terminate()
    worker.join()
    assert timing._cpu_time() >= before + 0.3  # and after it has ended
    assert timing._cpu_time_of_all() >= all_before + 0.2


def _spin():
    while True:
        pass


@pytest.mark.parametrize(
    "words, output",
    [
        (["--transform", "nothing"], "--transform nothing: NameError"),
        (["--workers", "-1"], "at least 1"),
        (["--prefetch-factor", "2"], "needs --workers"),
        (["--prefetch-factor", "0", "--workers", "1"], "--prefetch-factor must be at least 1"),
    ],
)
def test_bench_with_a_wrong_option_exits_with_a_message(image_root, words, output, capsys):
    _refused(capsys, output, image_root, *words)


def test_bench_of_a_folder_without_images_is_refused(tmp_path, capsys):
    _refused(capsys, "bench: ", tmp_path)


def test_sampled_files_count_bytes(image_root):
    from dali_compat import DALIImageFolder

    dataset = DALIImageFolder(image_root, T.ToTensor())
    files = timing.SampledFiles(dataset, 10)
    files.drop()
    assert files.read(2) > 0
    assert files.bytes == sum(len(open(dataset.samples[i][0], "rb").read()) for i in files.indices)
    assert files.share == 10 / len(dataset)
