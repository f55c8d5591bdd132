"""batched(): transforms of whole batches of tensors. parity/test_batched.py compares pixels and distributions."""

import copy
import pickle
from collections import namedtuple

import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils import data
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

import dali_compat
from contract.test_register import Doubled, _doubled, registry  # noqa: F401
from dali_compat import FallbackWarning, batched, on_batch, register

BYTES = torch.arange(64 * 3 * 12 * 10).mul_(7).remainder_(256).to(torch.uint8).view(64, 3, 12, 10)
FLOATS = BYTES / 255


class FlipIfPositive:
    """A transform without a translation, because it reads pixels."""

    def __call__(self, image):
        return image.flip(-1) if image.float().mean() > 0 else image


def transform_each(transform, images, seed=0):
    torch.manual_seed(seed)
    return torch.stack([transform(image) for image in images])


@pytest.mark.parametrize("flip", [v1.RandomHorizontalFlip(), v2.RandomHorizontalFlip()])
def test_each_image_is_flipped_independently_and_repeats_with_the_seed(flip):
    augment = batched(flip, fallback="error")
    torch.manual_seed(0)
    first, second = augment(BYTES), augment(BYTES)
    torch.manual_seed(0)
    assert torch.equal(first, augment(BYTES)) and torch.equal(second, augment(BYTES))
    flipped = (first == BYTES.flip(-1)).flatten(1).all(1)
    assert ((first == BYTES).flatten(1).all(1) ^ flipped).all() and 16 < flipped.sum() < 48
    assert not torch.equal(first, second)


def test_a_transform_that_is_not_random_leaves_the_generator():
    state = torch.get_rng_state()
    made = batched(v2.Compose([v2.CenterCrop(8), v2.ToDtype(torch.float32, scale=True)]), fallback="error")(BYTES)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(made, BYTES[..., 2:10, 1:9] * (1 / 255))


class FlipInCollate:
    """A collate_fn with a batched transform."""

    def __init__(self):
        self.augment = batched(v2.RandomHorizontalFlip(), fallback="error")

    def __call__(self, samples):
        return self.augment(torch.stack(samples))


def test_batched_in_collate_fn_follows_the_seed_in_workers():
    epochs = []
    for context, workers in (("fork", 2), ("fork", 2), ("fork", 1), ("spawn", 1)):
        loader = data.DataLoader(
            BYTES, 16, num_workers=workers, collate_fn=FlipInCollate(), multiprocessing_context=context
        )
        torch.manual_seed(0)
        epochs.append(torch.cat(list(loader)))
    flips = (epochs[0] == BYTES.flip(-1)).flatten(1).all(1).view(4, 16)
    assert torch.equal(*epochs[:2]) and torch.equal(*epochs[2:])
    assert len({tuple(batch.tolist()) for batch in flips}) == 4 and 16 < flips.sum() < 48


def test_a_change_of_the_transform_applies_to_the_next_batch():
    flip = v1.RandomHorizontalFlip(0)
    augment = batched(flip, fallback="error")
    assert torch.equal(augment(BYTES), BYTES)
    flip.p = 1
    assert torch.equal(augment(BYTES), BYTES.flip(-1))


def test_sizes_types_and_memory_formats_may_differ_between_batches():
    augment = batched(v2.Compose([v2.Resize((6, 6)), v2.ToDtype(torch.float32, scale=True)]), exact=True)
    for images in (BYTES, BYTES[:3, :1], BYTES[:, :, :9], BYTES.contiguous(memory_format=torch.channels_last)):
        assert torch.equal(augment(images), transform_each(augment.transform, images))
    image = augment(tv_tensors.Image(BYTES))
    assert type(image) is tv_tensors.Image and torch.equal(image, augment(BYTES))
    assert type(batched(v2.ToImage())(BYTES)) is tv_tensors.Image


def test_outputs_may_be_views_lists_or_pil_images():
    two = batched(dali_compat.views(v2.CenterCrop(4), v2.RandomHorizontalFlip(1)), fallback="error")(BYTES)
    assert torch.equal(two[0], BYTES[..., 4:8, 3:7]) and torch.equal(two[1], BYTES.flip(-1))
    several = batched(v2.RandomResize(5, 9), fallback="error")(BYTES)
    assert isinstance(several, list) and len({image.shape for image in several}) > 1
    gray = batched(v2.Grayscale(3), fallback="error")(BYTES)
    gray[:, 0] = 0  # its three planes share no memory
    assert gray[:, 1].any()
    pictures = batched(v2.ToPILImage(), fallback="silent")(BYTES)
    assert len(pictures) == 64 and isinstance(pictures[0], Image.Image)


FALLBACKS = {
    "a function": (
        v2.Compose([v2.RandomHorizontalFlip(), FlipIfPositive()]),
        BYTES,
        r"no translation .*FlipIfPositive|FlipIfPositive.*no translation",
    ),
    "channels": (v2.RandomHorizontalFlip(), BYTES.view(-1, 6, 12, 5), "6 channels of torch.uint8"),
    "whole numbers": (v2.RandomVerticalFlip(), BYTES.short() * 100, "torch.int16"),
}


@pytest.mark.parametrize("case", FALLBACKS)
def test_unsupported_input_falls_back_to_torchvision_with_a_warning(case):
    transform, images, reason = FALLBACKS[case]
    augment = batched(transform)
    with pytest.warns(FallbackWarning, match=reason) as warned:
        augment(images)
    torch.manual_seed(0)
    made = augment(images)
    assert len(warned) == 1 and warned[0].filename == __file__
    assert torch.equal(made, transform_each(transform, images))
    with pytest.raises(RuntimeError, match=reason):
        batched(transform, fallback="error")(images)


def test_gradients_reach_images_that_require_them():
    images = FLOATS.clone().requires_grad_()
    batched(v2.Normalize((0.5,) * 3, (0.5,) * 3), fallback="silent")(images).sum().backward()
    assert torch.equal(images.grad, torch.full_like(images, 2))


def test_boxes_and_masks_are_transformed_with_the_images():
    """torchvision transforms each sample."""
    transform = v2.Compose([v2.RandomHorizontalFlip(), v2.RandomCrop(8)])
    masks = tv_tensors.Mask(BYTES[:, 0])
    boxes = [
        {"boxes": tv_tensors.BoundingBoxes([[i % 5, 1, 9, 8]], format="XYXY", canvas_size=(12, 10))} for i in range(64)
    ]
    augment = batched(transform)
    torch.manual_seed(0)
    with pytest.warns(FallbackWarning, match="not boxes and masks"):
        made, cropped, moved = augment(BYTES, masks, boxes)
    assert isinstance(cropped, tv_tensors.Mask) and torch.equal(cropped, made[:, 0])
    torch.manual_seed(0)
    for i in range(64):
        image, target = transform(tv_tensors.Image(BYTES[i]), boxes[i])
        assert torch.equal(image, made[i]) and torch.equal(target["boxes"], moved[i]["boxes"])
    assert batched(transform, fallback="silent")(masks[:, None]).shape == (64, 1, 8, 8)


@pytest.mark.parametrize("boxes_each", [1, 2, None], ids=["one box", "two boxes", "other numbers"])
def test_lists_of_boxes_masks_and_names_stay_lists(boxes_each):
    """Shapes of the boxes may be equal or differ within the batch."""

    def boxes(i):
        rows = [[i % 5, 1, 9, 8], [0, 2, 4, 6 + i % 3], [1, 1, 2, 2]][: boxes_each or 1 + i % 3]
        return tv_tensors.BoundingBoxes(rows, format="XYXY", canvas_size=(12, 10))

    given, masks = list(map(boxes, range(64))), tuple(map(tv_tensors.Mask, BYTES))
    transform, augment = v2.RandomHorizontalFlip(), batched(v2.RandomHorizontalFlip(), fallback="silent")
    torch.manual_seed(0)
    made, moved, turned, names = augment(BYTES, given, masks, ["name"] * 64)
    torch.manual_seed(0)
    for i in range(64):
        image, box, mask = transform(tv_tensors.Image(BYTES[i]), given[i], masks[i])
        assert torch.equal(image, made[i]) and torch.equal(box, moved[i]) and torch.equal(mask, turned[i])
        assert isinstance(moved[i], tv_tensors.BoundingBoxes) and isinstance(turned[i], tv_tensors.Mask)
    assert type(moved) is type(turned) is type(names) is list and isinstance(made, torch.Tensor)


def test_one_box_per_image_is_flipped_with_its_image():
    """The boxes have shape (N, 4)."""
    boxes = tv_tensors.BoundingBoxes([[i % 5, 1, 9, 8] for i in range(64)], format="XYXY", canvas_size=(12, 10))
    torch.manual_seed(0)
    made, moved = batched(v2.RandomHorizontalFlip(), fallback="silent")(BYTES, boxes)
    flipped = (made != BYTES).flatten(1).any(1)
    expected = boxes.as_subclass(torch.Tensor).clone()
    expected[flipped] = torch.stack(
        [10 - boxes[flipped, 2], boxes[flipped, 1], 10 - boxes[flipped, 0], boxes[flipped, 3]], 1
    )
    assert isinstance(moved, tv_tensors.BoundingBoxes) and torch.equal(moved.as_subclass(torch.Tensor), expected)
    assert 0 < flipped.sum() < 64


WRONG = {
    "one image": (v2.CenterCrop(4), (BYTES[0],), TypeError, r"\(N, C, H, W\), got shape \(3, 12, 10\)"),
    "a list": (v2.CenterCrop(4), ([BYTES[0]],), TypeError, "got list"),
    "no image": (v2.CenterCrop(4), (BYTES[:0],), ValueError, "empty batch"),
    "boxes of v1": (v1.CenterCrop(4), (BYTES, []), TypeError, "CenterCrop takes only images"),
    "too few masks": (v2.CenterCrop(4), (BYTES, [1]), ValueError, "got 64, 1"),
    "a dictionary": (v2.CenterCrop(4), (BYTES, {"boxes": 1}), TypeError, "got dict"),
    "too small": (v2.RandomCrop(40), (BYTES,), ValueError, "larger than .*image 0 of the batch"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_are_named(case):
    transform, given, error, text = WRONG[case]
    with pytest.raises(error, match=text):
        batched(transform, fallback="silent")(*given)
    with pytest.raises(ValueError, match="fallback must be"):
        batched(transform, fallback="often")


def test_a_registered_transform_draws_for_each_image(registry):  # noqa: F811
    register(Doubled, consumes="chance")(lambda t, spec: on_batch(_doubled, spec, uniforms=1, chance=t.chance))
    made = batched(Doubled(0.4), fallback="error")(FLOATS)
    doubled = (made == FLOATS * 2).flatten(1).all(1)
    assert (doubled ^ (made == FLOATS).flatten(1).all(1)).all() and 10 < doubled.sum() < 42


def test_batched_is_a_module_that_can_be_copied_and_pickled():
    augment = batched(v2.RandomHorizontalFlip(), fallback="error")
    model = nn.Sequential(augment, nn.Flatten(), nn.Linear(360, 2))
    for one in (model.eval(), model.train(), copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.manual_seed(1)
        made = one[0](FLOATS)
        torch.manual_seed(1)
        assert torch.equal(made, augment(FLOATS))
    assert list(augment.parameters()) == [] and "RandomHorizontalFlip" in repr(model)


@pytest.mark.parametrize(
    "mode", [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu"), lambda: torch.device("meta")]
)
def test_torch_modes_of_the_caller_do_not_change_the_batch(mode):
    augment = batched(v2.Compose([v2.ColorJitter(0.4), v2.RandomCrop(9, padding=1)]), fallback="error")
    torch.manual_seed(0)
    expected = augment(FLOATS)
    torch.manual_seed(0)
    with mode():
        made = augment(FLOATS)
    assert torch.equal(made, expected) and made.dtype == expected.dtype and not made.requires_grad


def test_torch_compile_of_a_training_step_gives_the_same_result(recwarn):
    """The compiler breaks the graph at the transform."""
    augment, model = batched(v2.RandomHorizontalFlip(), fallback="error"), nn.Conv2d(3, 2, 3)

    def step(images):
        return model(augment(images * 2)).relu()

    torch.manual_seed(0)
    expected = step(FLOATS)
    torch.manual_seed(0)
    assert torch.equal(torch.compile(step, backend="eager")(FLOATS), expected)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(step, backend="eager", fullgraph=True)(FLOATS)
    assert not [one for one in recwarn if "dali_compat" in str(one.filename)]


@pytest.mark.gpu
def test_results_on_a_gpu_equal_the_cpus_and_cuda_graphs_are_refused():
    augment = batched(v2.Compose([v2.RandomHorizontalFlip(), v2.RandomCrop(9)]), fallback="error")
    torch.manual_seed(0)
    expected = augment(BYTES)
    torch.manual_seed(0)
    images = BYTES.cuda()
    assert torch.equal(augment(images).cpu(), expected)
    with pytest.raises(RuntimeError, match="CUDA graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        augment(images)


class _Views(nn.Module):
    """A transform without a translation that returns a container with an image and its mirror image."""

    def __init__(self, container):
        super().__init__()
        self.container = container

    def forward(self, image):
        return self.container([image, image.flip(-1)])


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    "container", [tuple, list, lambda images: dict(zip("ab", images, strict=True)), lambda images: Pair(*images)]
)
def test_containers_become_containers_of_batches_without_a_translation_as_with_one(container):
    images = torch.rand(4, 3, 8, 8)
    transform = batched(_Views(container), fallback="silent")
    made = transform(images)
    assert type(made) is type(container([0, 0]))
    first, second = made.values() if isinstance(made, dict) else made
    assert torch.equal(first, images) and torch.equal(second, images.flip(-1))


def test_results_of_different_types_become_a_list_without_a_translation():
    images = torch.arange(2).view(2, 1, 1, 1).expand(2, 3, 4, 4).float()
    transform = batched(lambda image: [image, image] if image.max() else None, fallback="silent")
    first, second = transform(images.flip(0))
    assert [len(first), second] == [2, None]


@pytest.mark.parametrize("container", [list, tuple])
def test_containers_of_different_lengths_become_a_list_of_them_without_a_translation(container):
    images = torch.arange(1, 4).view(3, 1, 1, 1).expand(3, 3, 4, 4).float()
    transform = batched(lambda image: container([image] * int(image.max())), fallback="silent")
    assert [len(one) for one in transform(images)] == [1, 2, 3]
