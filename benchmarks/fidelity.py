"""Question: how far are our pixels from torchvision's, on real photos, by default and with exact=True?

Method. Every image of --data, one epoch of ours in order, beside torchvision on PIL images: for random transforms
torchvision's own functions with the parameters that our loader drew (engine/replay.py), otherwise `dataset[i]`. Errors are
absolute differences in levels of 0..255, normalisation undone: mean over all values of all images, the worst image's mean,
and the maximum. Shapes and dtypes must be equal.

Confounders. Numbers depend on the photos: chroma-subsampled JPEGs differ more on a GPU. The reference is this machine's
torchvision and Pillow, named in the JSON.

Command.
    python benchmarks/fidelity.py --data PHOTOS --json OUT.json
"""
import common
import numpy as np
import torch
from loaders import MEAN, STD
from torchvision import transforms as T
from torchvision.transforms import v2

BICUBIC = T.InterpolationMode.BICUBIC
RECIPES = {
    "decode (PILToTensor)": T.PILToTensor(),
    "RandomCrop(224, padding=8, pad_if_needed), flip": T.Compose(
        [T.RandomCrop(224, 8, True), T.RandomHorizontalFlip(), T.PILToTensor()]),
    "Resize(256), CenterCrop(224)": T.Compose([T.Resize(256), T.CenterCrop(224), T.PILToTensor()]),
    "Resize(256, bicubic), CenterCrop(224)": T.Compose([T.Resize(256, BICUBIC), T.CenterCrop(224), T.PILToTensor()]),
    "Resize((224, 224))": T.Compose([T.Resize((224, 224)), T.PILToTensor()]),
    "RandomResizedCrop(224), flip, ToTensor, Normalize": T.Compose(
        [T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)]),
    "v2: ToImage, RandomResizedCrop(224), ToDtype, Normalize": v2.Compose(
        [v2.ToImage(), v2.RandomResizedCrop(224), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]),
    "CenterCrop(224), Grayscale(3)": T.Compose([T.CenterCrop(224), T.Grayscale(3), T.PILToTensor()]),
}


def levels(images):
    """float64 in levels of 0..255; differences alone matter, so Normalize's mean stays."""
    scale = 1 if images.dtype == torch.uint8 else 255
    std = torch.tensor(STD, dtype=torch.float64)[:, None, None] if scale == 255 else 1
    return images.cpu().double() * std * scale


def reference(loader, seed):
    """torchvision's images, with the parameters of the epoch that had this seed."""
    from dali_compat.engine.replay import replay
    from dali_compat.headers import headers_of
    from dali_compat.params import Randoms, compute

    paths = [path for path, _ in loader.dataset.samples]
    sizes, _ = headers_of(loader.dataset).look(list(range(len(paths))), paths)
    steps = loader._route.plans[0].steps
    arrays = compute(steps, sizes, Randoms(seed, 0, len(paths)), slice(None))
    for i, path in enumerate(paths):
        yield replay(path, steps, [{name: array[i] for name, array in step.items()} for step in arrays])


def measure(root, transform, device, exact):
    from dali_compat import DALIImageFolder, DataLoader

    dataset = DALIImageFolder(str(root), transform)
    loader = DataLoader(dataset, 16, device=device, exact=exact, fallback="error", collate_fn=lambda samples: samples)
    torch.manual_seed(0)
    epoch = iter(loader)
    seed = epoch._base_seed
    errors = []
    images = (image for batch in epoch for image, _ in batch)
    for mine, wanted in zip(images, reference(loader, seed), strict=True):
        if mine.shape != wanted.shape or mine.dtype != wanted.dtype:
            raise SystemExit(f"{mine.shape} {mine.dtype}, torchvision gives {wanted.shape} {wanted.dtype}")
        errors.append((levels(mine) - levels(wanted)).abs())
    loader.close()
    values = sum(error.numel() for error in errors)
    return {"mean": float(sum(error.sum() for error in errors) / values), "max": float(max(error.max() for error in errors)),
            "worst_image_mean": float(max(np.mean(error.numpy()) for error in errors)), "images": len(errors)}


def main():
    options = common.parser(__doc__)
    args = options.parse_args()
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    import dali_compat  # noqa: F401 - before CUDA starts

    result = {"benchmark": "fidelity", "facts": common.facts(), "images": common.describe(args.data, args.data), "rounds": []}
    rows = []
    for name, transform in RECIPES.items():
        cells = [name]
        for exact in (False, True):
            row = measure(args.data, transform, device, exact)
            result["rounds"].append({"recipe": name, "device": device, "exact": exact, **row})
            cells += [f"{row['mean']:.4f}", f"{row['max']:.0f}"]
        rows.append(cells)
        common.write_json(args.json, result)
    print(common.markdown([f"on {device}", "mean", "max", "exact=True: mean", "max"], rows))


if __name__ == "__main__":
    main()
