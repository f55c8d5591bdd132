"""Custom data sets with both loaders: random programs, and programs that once gave other data or crashed."""

import ast
import itertools
import time

import pytest
from helpers import ALL
from torch.utils import data

from faults import own_compare, own_programs
from faults.own_cases import CASES, HEADER
from faults.own_compare import DIFFERS, LEAKS, RAISES, RELATION, Setting
from faults.own_vocabulary import program

PROGRAMS = 40 if ALL else 10
ONE = Setting(batch_size=4)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("own")
    own_compare.make_files(root)
    time.sleep(0.05)  # recently written files are read by the data set itself
    return root


def _reports(outcomes) -> str:
    return "\n".join(own_programs.as_program(outcome) for outcome in outcomes if outcome.found)


@pytest.mark.alike
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_programs_give_the_same_with_both_loaders(root, seed):
    outcomes = own_programs.results(list(itertools.islice(own_programs.jobs_of(seed), PROGRAMS)), str(root))
    assert len(outcomes) == PROGRAMS and not _reports(outcomes), _reports(outcomes)
    assert sum(outcome.route == "DALI" for outcome in outcomes) >= PROGRAMS // 5


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("number", range(len(own_programs.SETTINGS)), ids=["exact", "default", "workers"])
def test_program_that_once_differed_gives_the_same_with_both_loaders(root, number, device):
    """Each program runs with one of the settings, or with all of them if REPETITIONS=all."""
    step, setting = 1 if ALL else len(own_programs.SETTINGS), own_programs.SETTINGS[number]._replace(device=device)
    jobs = [own_programs.Job(0, HEADER + source, setting) for source in [*CASES.values()][number::step]]
    outcomes = own_programs.results(jobs, str(root))
    assert len(outcomes) == len(jobs) and not _reports(outcomes), _reports(outcomes)


def test_random_programs_are_valid_python():
    for number in range(300):
        ast.parse(program(number))


# ---- the harness detects differences

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


def _altered_loader(change):
    """Return a loader that replaces ours and changes the batches of torch's loader."""

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


def _wrong_label(batch):
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
        (PLAIN, _wrong_label, DIFFERS),
        (PLAIN, list, None),
        (PLAIN, _raising, RAISES),
        (PAIR, _apart, RELATION),
        (PAIR, list, None),
        (APART, _equal, RELATION),
        (APART, list, None),
    ],
)
@pytest.mark.parametrize("exact", [True, False])
def test_difference_between_loaders_is_detected(root, tmp_path, monkeypatch, source, change, kind, exact):
    monkeypatch.setattr(own_compare, "DataLoader", _altered_loader(change))
    file = tmp_path / "program.py"
    file.write_text(HEADER + source)
    # With workers, programs that draw get other numbers than with torch's loader.
    setting = ONE._replace(exact=exact, workers=2 if source in (PAIR, APART) else 0)
    found, _ = own_compare.compare(file, own_compare.files_of(root), setting)
    assert {one.kind for one in found} == ({kind} if kind else set()), found


def test_leaked_threads_are_detected(root, tmp_path, monkeypatch):
    monkeypatch.setattr(own_compare, "DataLoader", _altered_loader(list))
    counts = iter([10, 10 + own_compare.THREADS + 1])
    monkeypatch.setattr(own_compare, "_threads", lambda: next(counts))
    file = tmp_path / "program.py"
    file.write_text(HEADER + PLAIN)
    found, _ = own_compare.compare(file, own_compare.files_of(root), ONE)
    assert [one.kind for one in found] == [LEAKS]


CRASH = "import os\nclass Own(Files):\n    def __getitem__(self, i):\n        os.abort()\n"
HANG = "import time\nclass Own(Files):\n    def __getitem__(self, i):\n        time.sleep(9999)\n"


def test_crash_is_reported_with_its_program(root):
    jobs = [own_programs.Job(number, HEADER + source, ONE) for number, source in enumerate([PLAIN, CRASH, PLAIN])]
    outcomes = own_programs.results(jobs, str(root))
    assert [[one.kind for one in outcome.found] for outcome in outcomes] == [[], [own_programs.CRASHED], []]
    assert "Aborted" in outcomes[1].found[0].text and "os.abort()" in own_programs.as_program(outcomes[1])


def test_hang_is_reported_with_its_program(root):
    (outcome,) = own_programs.attempt([own_programs.Job(5, HEADER + HANG, ONE)], str(root), seconds=2)
    assert [one.kind for one in outcome.found] == [own_programs.HUNG] and "number 5" in own_programs.as_program(outcome)


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


def test_minimized_program_keeps_only_the_crash(monkeypatch):
    def attempt(jobs, root, seconds):
        (job,) = jobs
        return [
            own_programs.Outcome(
                job, (own_programs.Finding(own_programs.CRASHED, ""),) if "os.abort()" in job.source else ()
            )
        ]

    monkeypatch.setattr(own_programs, "attempt", attempt)
    shortest = own_programs.minimized(
        own_programs.Outcome(own_programs.Job(0, LONG, ONE), (own_programs.Finding(own_programs.CRASHED, ""),)), ""
    ).job.source
    assert "os.abort()" in shortest and not any(word in shortest for word in ("paths.sort", "i % 2", "self.paths"))


def test_torchs_loader_with_other_seeds_has_no_differences(root, tmp_path):
    setting = Setting(exact=True)
    files = own_compare.files_of(root)
    for job in itertools.islice(own_programs.jobs_of(9), 8):
        file = tmp_path / f"{job.number}.py"
        file.write_text(job.source)
        one, other, third = (
            own_compare.run_program(file, files, setting, data.DataLoader, (seed, 1)) for seed in (1, 2, 3)
        )
        assert not list(own_compare._differences(one, other, third, setting, 0.03))
