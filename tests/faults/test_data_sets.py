"""Random custom data sets with both loaders, and tests of the program that compares them."""

import ast
import itertools
import time

import black_box
import pytest
import torch
from helpers import ALL
from torch.utils import data

from faults import data_sets
from faults.data_sets import CRASHED, DIFFERS, HUNG, VARIES, Job
from faults.phrases import HEADER, KINDS, learn_phrases

PROGRAMS = 40 if ALL else 10
FUNCTIONS = 500 if ALL else 100  # functions whose arguments are tried in each test


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data_sets")
    data_sets.make_files(root)
    time.sleep(black_box.SETTLED)
    return root


@pytest.fixture(scope="module")
def phrases():
    return learn_phrases(1, 60, FUNCTIONS)


@pytest.mark.alike
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_data_sets_give_the_same_with_both_loaders(root, seed, workers):
    jobs = list(itertools.islice(data_sets.jobs_of(seed, learn_phrases(seed, 60, FUNCTIONS), (workers,)), PROGRAMS))
    outcomes = data_sets.results(jobs, str(root))
    wrong = "\n".join(data_sets.as_program(one) for one in outcomes if one.kind not in ("", VARIES))
    assert len(outcomes) == PROGRAMS and not wrong, wrong
    assert sum(one.on_dali for one in outcomes) >= PROGRAMS // 2
    assert sum(bool(one.raises) for one in outcomes) <= PROGRAMS // 4


def test_phrases_cover_all_kinds(phrases):
    """Arguments are found for most functions, and some return an image or a tensor again."""
    assert len(phrases) > FUNCTIONS
    for kind in KINDS:
        assert {"", kind} <= {one.gives for one in phrases if one.takes == kind}, kind


def test_random_programs_are_valid_python(phrases):
    for job in itertools.islice(data_sets.jobs_of(5, phrases), 200):
        ast.parse(job.source)


# ---- differences are detected

PLAIN = """
OPTIONS = {'batch_size': 4, 'num_workers': 0}

class Own(Dataset):
    def __init__(self, files):
        self.files, self.count = files, 0
    def __len__(self):
        return 12
    def __getitem__(self, i):
        self.count += 1
        unused = torch.rand(2)
        image = Image.open(self.files[i]).convert('RGB')
        image = image.resize((30, 30))
        return F.to_tensor(image), i
"""


def job(source, number=0):
    return Job(number, HEADER + source)


def altered_loader(change_batch=lambda batch: batch, change_dataset=lambda dataset: None):
    """A loader that changes the batches of torch's loader, or the data set before each epoch."""

    class Altered(data.DataLoader):
        def __iter__(self):
            change_dataset(self.dataset)
            return map(change_batch, super().__iter__())

        def explain(self):
            return "altered"

    return lambda dataset, **options: Altered(dataset, **options)


def increment_count(dataset):
    dataset.count += 1


@pytest.mark.parametrize(
    "loader, text",
    [
        (altered_loader(), ""),
        (altered_loader(lambda batch: [batch[0] + 1e-6, batch[1]]), "values differ"),
        (altered_loader(lambda batch: [batch[0][:, :, 1:], batch[1]]), "shape"),
        (altered_loader(lambda batch: [batch[0].double(), batch[1]]), "dtype"),
        (altered_loader(lambda batch: [batch[0].to(memory_format=torch.channels_last), batch[1]]), "stride"),
        (altered_loader(lambda batch: tuple(batch)), "expected builtins.list"),
        (altered_loader(lambda batch: 1 / 0), "ZeroDivisionError"),
        (altered_loader(change_dataset=increment_count), "attributes['count']"),
        (altered_loader(change_dataset=lambda dataset: torch.rand(1)), "values differ"),
    ],
)
def test_difference_between_loaders_is_described(root, monkeypatch, loader, text):
    monkeypatch.setattr(data_sets, "under_test", loader)
    monkeypatch.setattr(black_box, "under_test", loader)
    outcome = data_sets.compare_program(job(PLAIN), data_sets.files_of(root))
    assert outcome.kind == (DIFFERS if text else "") and text in outcome.text, outcome.text


def test_data_set_that_varies_with_torchs_loader_is_not_reported(root, monkeypatch):
    monkeypatch.setattr(data_sets, "under_test", altered_loader())
    outcome = data_sets.compare_program(
        job(PLAIN.replace("), i", "), time.time_ns()").replace("\n", "\nimport time\n", 1)), data_sets.files_of(root)
    )
    assert outcome.kind == VARIES


def test_statements_that_raise_are_removed_from_programs(root):
    wrong = job(PLAIN.replace("unused = torch.rand(2)", "unused = 1 / (i - 5)"), number=1)
    assert "unused" not in data_sets.without_failing_statements(wrong, data_sets.files_of(root)).source
    assert (
        "return F.to_tensor(image), i" in data_sets.without_failing_statements(wrong, data_sets.files_of(root)).source
    )


def test_crash_is_reported_with_its_program(root):
    crash = job(PLAIN.replace("unused = torch.rand(2)", "__import__('os').abort()"), number=8)
    outcomes = data_sets.results([job(PLAIN), crash, job(PLAIN)], str(root))
    assert [one.kind for one in outcomes] == ["", CRASHED, ""]
    assert "Aborted" in outcomes[1].text and "abort()" in data_sets.as_program(outcomes[1])


def test_hang_is_reported_with_its_program(root):
    hang = job(PLAIN.replace("unused = torch.rand(2)", "__import__('time').sleep(999)"), number=16)
    (outcome,) = data_sets.attempt([hang], str(root), seconds=3)
    assert outcome.kind == HUNG and "number 16" in data_sets.as_program(outcome)


def test_minimized_program_keeps_only_the_difference(monkeypatch):
    def attempt(jobs, root, seconds):
        return [data_sets.Outcome(one, DIFFERS if "resize" in one.source else "", "attributes") for one in jobs]

    monkeypatch.setattr(data_sets, "attempt", attempt)
    shortest = data_sets.minimized(data_sets.Outcome(job(PLAIN), DIFFERS, "attributes"), "").job.source
    assert "resize" in shortest and "unused" not in shortest and "import io" not in shortest
