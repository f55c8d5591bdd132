"""Data sets of one's own: random ones, and those that once gave other data or ended the process, with both loaders."""

import ast
import itertools
import time

import pytest
from helpers import ALL
from torch.utils import data

from faults import own_compare
from faults import own_programs as own
from faults.own_cases import CASES, HEADER
from faults.own_compare import DIFFERS, LEAKS, RAISES, RELATION, Setting
from faults.own_vocabulary import program

PROGRAMS = 40 if ALL else 16
ONE = Setting(batch_size=4)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("own")
    own_compare.make_files(root)
    time.sleep(0.05)  # what was written just now is read by the data set itself
    return root


def _wrong(outcomes) -> str:
    return "\n".join(own.told(outcome) for outcome in outcomes if outcome.found)


@pytest.mark.alike
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_programs(root, seed):
    outcomes = own.results(list(itertools.islice(own.jobs_of(seed), PROGRAMS)), str(root))
    assert len(outcomes) == PROGRAMS and not _wrong(outcomes), _wrong(outcomes)
    assert sum(outcome.route == "DALI" for outcome in outcomes) >= PROGRAMS // 5


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("number", range(len(own.SETTINGS)), ids=["exact", "default", "workers"])
def test_once_wrong(root, number, device):
    """Each under one of the settings, or all of them with REPETITIONS=all."""
    step, setting = 1 if ALL else len(own.SETTINGS), own.SETTINGS[number]._replace(device=device)
    jobs = [own.Job(0, HEADER + source, setting) for source in [*CASES.values()][number::step]]
    outcomes = own.results(jobs, str(root))
    assert len(outcomes) == len(jobs) and not _wrong(outcomes), _wrong(outcomes)


def test_programs_are_python():
    for number in range(300):
        ast.parse(program(number))


# ---- the harness notices

PLAIN = """
class Own(Files):
    def __getitem__(self, i):
        torch.rand(1)
        return T.ToTensor()(self.rgb(i).resize((40, 40))), i
"""
PAIR = """
class Own(Files):
    def __getitem__(self, i):
        t, l, h, w = T.RandomCrop.get_params(self.rgb(i), (30, 30))
        return [T.ToTensor()(F.crop(self.rgb(i), t, l, h, w)) for _ in range(2)]
"""
APART = """
class Own(Files):
    def __getitem__(self, i):
        t = T.RandomCrop(30)
        return [T.ToTensor()(t(self.rgb(i))) for _ in range(2)]
"""


def _altered(change):
    """A loader in the place of ours, which changes what torch's gives."""

    class Altered(data.DataLoader):
        def __init__(self, *args, exact, device, fallback, **options):
            super().__init__(*args, **options)

        def __iter__(self):
            return map(change, super().__iter__())

        def explain(self):
            return "altered"

    return Altered


def _brighter(batch):
    return [(image + 0.1, label) for image, label in batch]


def _smaller(batch):
    return [(image[:, :-1], label) for image, label in batch]


def _late(batch):
    return [(image, label - 1) for image, label in batch]


def _raising(batch):
    raise OSError("of the loader")


def _apart(batch):
    return [[a, b.flip(-1)] for a, b in batch]


def _equal(batch):
    return [[a, a] for a, b in batch]


@pytest.mark.alike
@pytest.mark.parametrize(
    "source, change, kind",
    [
        (PLAIN, _brighter, DIFFERS),
        (PLAIN, _smaller, DIFFERS),
        (PLAIN, _late, DIFFERS),
        (PLAIN, list, None),
        (PLAIN, _raising, RAISES),
        (PAIR, _apart, RELATION),
        (PAIR, list, None),
        (APART, _equal, RELATION),
        (APART, list, None),
    ],
)
@pytest.mark.parametrize("exact", [True, False])
def test_what_differs_is_found(root, tmp_path, monkeypatch, source, change, kind, exact):
    monkeypatch.setattr(own_compare, "DataLoader", _altered(change))
    file = tmp_path / "program.py"
    file.write_text(HEADER + source)
    setting = ONE._replace(exact=exact, workers=2 if source in (PAIR, APART) else 0)  # where it draws other numbers
    found, _ = own_compare.compare(file, own_compare.files_of(root), setting)
    assert {one.kind for one in found} == ({kind} if kind else set()), found


def test_threads_are_found(root, tmp_path, monkeypatch):
    monkeypatch.setattr(own_compare, "DataLoader", _altered(list))
    counts = iter([10, 10 + own_compare.THREADS + 1])
    monkeypatch.setattr(own_compare, "_threads", lambda: next(counts))
    file = tmp_path / "program.py"
    file.write_text(HEADER + PLAIN)
    found, _ = own_compare.compare(file, own_compare.files_of(root), ONE)
    assert [one.kind for one in found] == [LEAKS]


CRASH = "import os\nclass Own(Files):\n    def __getitem__(self, i):\n        os.abort()\n"
HANG = "import time\nclass Own(Files):\n    def __getitem__(self, i):\n        time.sleep(9999)\n"


def test_a_crash_names_its_program(root):
    jobs = [own.Job(number, HEADER + source, ONE) for number, source in enumerate([PLAIN, CRASH, PLAIN])]
    outcomes = own.results(jobs, str(root))
    assert [[one.kind for one in outcome.found] for outcome in outcomes] == [[], [own.CRASHED], []]
    assert "Aborted" in outcomes[1].found[0].text and "os.abort()" in own.told(outcomes[1])


def test_a_hang_names_its_program(root):
    (outcome,) = own.attempt([own.Job(5, HEADER + HANG, ONE)], str(root), seconds=2)
    assert [one.kind for one in outcome.found] == [own.HUNG] and "number 5" in own.told(outcome)


LONG = """
import os


class Own:
    def __init__(self, paths, masks):
        self.paths = paths

    def __len__(self):
        return 4

    def __getitem__(self, i):
        self.paths.sort()
        if i % 2:
            os.abort()
"""


def test_programs_become_shorter(monkeypatch):
    def attempt(jobs, root, seconds):
        (job,) = jobs
        return [own.Outcome(job, (own.Found(own.CRASHED, ""),) if "os.abort()" in job.source else ())]

    monkeypatch.setattr(own, "attempt", attempt)
    shortest = own.minimised(own.Outcome(own.Job(0, LONG, ONE), (own.Found(own.CRASHED, ""),)), "").job.source
    assert "os.abort()" in shortest and not any(word in shortest for word in ("paths.sort", "i % 2", "self.paths"))


def test_random_draws_are_no_differences(root, tmp_path):
    """Of torch's own loader with other seeds nothing is wrong."""
    setting = Setting(exact=True)
    files = own_compare.files_of(root)
    for job in itertools.islice(own.jobs_of(9), 8):
        file = tmp_path / f"{job.number}.py"
        file.write_text(job.source)
        one, other, third = (own_compare.ran(file, files, setting, data.DataLoader, (seed, 1)) for seed in (1, 2, 3))
        assert not list(own_compare._differences(one, other, third, setting, 0.03))
