"""Results that nobody measured, to draw and to write from."""


def turns(config: str, cores: int, source: str | None, case: str, speeds: list[float]) -> list[dict]:
    """Rounds as benchmarks/toolkit.py writes them."""
    row = {"config": config, "cores": cores, "source": source, "case": case, "batch_size": 128, "waiting": 0.25}
    return [row | {"round": number, "images_per_s": speed} for number, speed in enumerate(speeds)]


def measured() -> tuple[dict, dict]:
    """Results by cores, and of configs: one has no .rec, the others are not measured."""
    cores = [row for n in (2, 16) for row in turns("resnet18", n, None, "synthetic", [1000.0, 990.0])]
    cores += turns("resnet18", 2, "folder", "dali", [400.0, 500.0]) + turns("resnet18", 16, "folder", "dali", [900.0])
    cores += turns("resnet18", 2, "folder", "torchvision", [100.0]) + turns(
        "resnet18", 16, "folder", "torchvision", [500.0]
    )
    configs = turns("ghostnet", 16, None, "synthetic", [2000.0])
    configs += turns("ghostnet", 16, "folder", "dali", [1500.0, 1600.0, 1400.0])
    configs += turns("ghostnet", 16, "folder", "torchvision", [300.0])
    about = {"ranks": 1, "facts": {"gpu": "NVIDIA H200, 580, 143771 MiB"}}
    return {"rounds": cores, **about}, {"rounds": configs, **about}
