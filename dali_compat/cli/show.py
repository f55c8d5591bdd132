"""Save a picture of a loader's transformed images with their labels, and print where each transform runs."""

from __future__ import annotations

import os

from dali_compat.cli.arguments import UsageError, add_data, add_device, dataset_of, device_of, try_to_write


def add_arguments(parser) -> None:
    add_data(parser)
    parser.add_argument("--images", type=int, default=16, help="number of random images (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of images and transforms (default %(default)s)")
    parser.add_argument("--exact", action="store_true", help="torchvision's pixels (exact=True)")
    out = "dali_compat_show.png"
    parser.add_argument("--out", default=out, help="where to save the picture (default ./%(default)s)")
    add_device(parser, has_batch_size=False)


def run(args) -> int:
    import torch

    from dali_compat import DataLoader

    device = device_of(args)
    if args.images < 1:
        raise UsageError("--images must be at least 1")
    try_to_write(args.out)
    dataset = dataset_of(args)
    torch.manual_seed(args.seed)
    how = {"device": device, "exact": args.exact, "on_error": args.on_error, "fallback": "silent"}
    loader = DataLoader(dataset, args.images, shuffle=True, **how)
    print(loader.explain())
    try:
        loader.preview(args.images).save(args.out, format="PNG")
    except ValueError as error:
        raise UsageError(str(error)) from None
    print(f"\npicture: {os.path.abspath(args.out)}")
    return 0
