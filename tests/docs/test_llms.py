"""The messages that llms.txt names occur as written. test_snippets.py runs its code."""

import re
import warnings

import pytest
import torchvision.transforms as T

import dali_compat
from dali_compat import DALIImageFolder, DataLoader
from docs.pages import inline, links, text

PAGE = "llms.txt"
MESSAGES = re.findall(r"^\| `(\w+): ([^`]+)` \|", text(PAGE), re.MULTILINE)


class Overriding(DALIImageFolder):
    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return image.numpy() * 1, target


def batches(transform, kind=DALIImageFolder, **options):
    return list(DataLoader(kind("imagenet/train", transform), 4, device="cpu", num_workers=1, **options))


def damaged(here):
    path = sorted((here / "imagenet" / "train").glob("*/*"))[0]
    path.write_bytes(path.read_bytes()[:300])
    batches(T.Compose([T.Resize((8, 8)), T.ToTensor()]))


def another_state(here):
    dataset = DALIImageFolder("imagenet/train", T.ToTensor())
    state = DataLoader(dataset, 2, device="cpu").state_dict()
    loader = DataLoader(dataset, 4, device="cpu")
    loader.load_state_dict(state, strict=False)
    loader.load_state_dict(state)


CAUSES = {
    "torchvision does the work": lambda here: batches(T.Compose([T.Resize((8, 8)), T.ToTensor()]), Overriding),
    "cannot decode": damaged,
    "Required crop size": lambda here: batches(T.Compose([T.RandomCrop(4000), T.ToTensor()])),
    "default_collate": lambda here: batches(T.Resize((8, 8))),
    "stack expects": lambda here: batches(T.Compose([T.Resize(8), T.ToTensor()])),
    "the state was saved by a different loader": another_state,
}


def test_every_message_has_a_cause():
    assert len(MESSAGES) == len(CAUSES)
    assert all(any(words.startswith(beginning) for _, words in MESSAGES) for beginning in CAUSES)


@pytest.mark.parametrize("kind, words", MESSAGES)
def test_cause_gives_the_message_of_the_page(kind, words, here):
    (cause,) = [cause for beginning, cause in CAUSES.items() if words.startswith(beginning)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", dali_compat.FallbackWarning)
        with pytest.raises((Exception, Warning)) as caught:
            cause(here)
    assert kind in {one.__name__ for one in type(caught.value).__mro__}
    assert re.match(".*".join(map(re.escape, words.split("..."))), str(caught.value), re.DOTALL), str(caught.value)


def test_fallback_error_raises_for_an_overridden_getitem(here):
    with pytest.raises(RuntimeError, match="overrides __getitem__"):
        batches(T.Compose([T.Resize((8, 8)), T.ToTensor()]), Overriding, fallback="error")


def test_llms_txt_names_all_data_sets_and_functions():
    named = set(re.findall(r"\w+", " ".join(inline(PAGE)) + text(PAGE)))
    sets = {name for name in dali_compat.__all__ if name.startswith("DALI")} - {"DALIDataLoader"}
    assert sets | {"register", "on_batch", "install", "DataLoader"} <= named


def test_llms_txt_is_short():
    assert len(text(PAGE).split()) < 1000 and len(links(PAGE)) > 10
