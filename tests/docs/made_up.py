"""Made-up results, as input of plots and tables."""


def turns(config: str, cores: int, source: str | None, case: str, speeds: list[float]) -> list[dict]:
    """Return rounds in the format of benchmarks/toolkit.py."""
    row = {"config": config, "cores": cores, "source": source, "case": case, "batch_size": 128, "waiting": 0.25}
    return [row | {"round": number, "images_per_s": speed} for number, speed in enumerate(speeds)]


def by_cores() -> dict:
    """Return a result of a config on 2 and on 16 cores, from a folder."""
    rows = [row for n in (2, 16) for row in turns("resnet18", n, None, "synthetic", [1000.0, 1000.0])]
    rows += turns("resnet18", 2, "folder", "dali", [400.0, 500.0]) + turns("resnet18", 16, "folder", "dali", [900.0])
    rows += turns("resnet18", 2, "folder", "torchvision", [100.0])
    return whole(rows + turns("resnet18", 16, "folder", "torchvision", [500.0]))


def of_a_config(source: str = "folder", speed: float = 2000.0) -> dict:
    """Return a result of another config on 16 cores, with this speed on synthetic data."""
    rows = turns("ghostnet", 16, None, "synthetic", [speed] * 3)
    rows += turns("ghostnet", 16, source, "dali", [0.75 * speed, 0.8 * speed, 0.7 * speed])
    return whole(rows + turns("ghostnet", 16, source, "torchvision", [0.15 * speed]))


def whole(rows: list[dict], ranks: int = 1, gpu: str = "NVIDIA H200, 580, 143771 MiB") -> dict:
    return {"benchmark": "toolkit", "rounds": rows, "ranks": ranks, "facts": {"gpu": gpu, "cores": 16}}
