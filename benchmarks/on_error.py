"""Question: how much does on_error="replace" cost, on a clean folder and with a broken file in every tenth batch; and
how much does checking every file's bytes cost when they are read for the first time?

Method. One process; the cases take turns over --rounds rounds. Each turn lists the folder again, opens a fresh loader,
takes three batches to start it, then times the first epoch (almost all of its files are new) and the second one. The
device is synchronised at both ends. Ratios are of medians over rounds, with the range within one round in brackets.

Cases: raise (the default) and replace on a clean folder; broken (replace) on a folder with one file per ten batches
cut in half.

Confounders.
- Nothing consumes the batches.
- With --replicate the files come from memory: no disk, warm caches, for every case.
- The first epoch also reads the headers of all files.

Command.
    python benchmarks/on_error.py --data PHOTOS --replicate 300 --rounds 5 --json OUT.json
"""

import time
import warnings

import common
import loaders

CASES = {"raise": {}, "replace": {"on_error": "replace"}, "broken": {"on_error": "replace"}}
EPOCHS = "first", "second"


def damage(root, every):
    """Truncate one in ``every`` files to half its size. Return the number of truncated files."""
    paths = sorted(path for path in root.glob("*/*") if path.is_file())[::every]
    for path in paths:
        whole = path.read_bytes()
        path.unlink()  # a hard link: the other files stay complete
        path.write_bytes(whole[: len(whole) // 2])
    return len(paths)


def epoch(opened, settings):
    """Return images per second."""
    loaders.synchronise(settings.device)
    begin = time.perf_counter()
    images = sum(len(labels) for _, labels in opened.epoch())
    loaders.synchronise(settings.device)
    return images / (time.perf_counter() - begin)


def turn(case, settings):
    opened = loaders.ours_loader(settings, loaders.dataset("ours", settings.root), **CASES[case])
    start = opened.epoch()
    for _ in range(3):
        loaders.check(next(start), settings)
    del start
    row = {name: epoch(opened, settings) for name in EPOCHS}
    opened.close()
    del opened
    loaders.release(settings.device)
    return row


def report(rounds):
    rows = []
    for name in EPOCHS:
        speed = common.medians(rounds, name)
        rows += [
            [f"{case}, {name} epoch", *common.spread(speed[case], ",.0f"), common.ratio(rounds, name, case, "raise")]
            for case in CASES
        ]
    print("\n" + common.markdown(["case", "images/s", "min - max", "to raise"], rows))
    for row in rounds:
        row["first to second"] = row["first"] / row["second"]
    print(
        common.markdown(
            ["case", "first to second epoch", "min - max"],
            [[case, *common.spread(entry, ".3f")] for case, entry in common.medians(rounds, "first to second").items()],
        )
    )


def main():
    options = common.parser(__doc__)
    args = options.parse_args()
    if not args.replicate:
        options.error("--replicate N: files are damaged, and must be copies")
    warnings.simplefilter("ignore")
    device = loaders.device_of(args)
    with common.folder(args.data, args.replicate) as clean, common.folder(args.data, args.replicate) as broken:
        result = {
            "benchmark": "on_error",
            "facts": common.facts(),
            "images": common.describe(clean, args.data),
            "broken_files": damage(broken, 10 * args.batch_size),
            "rounds": [],
        }
        print(result["facts"], result["images"], f"{result['broken_files']} broken files", sep="\n", flush=True)
        for number, case in common.in_turn(list(CASES), args.rounds):
            root = broken if case == "broken" else clean
            row = turn(case, loaders.Settings(str(root), device, args.batch_size, args.workers))
            result["rounds"].append({"round": number, "case": case, **row})
            print(common.line(result["rounds"][-1]), flush=True)
            common.write_json(args.json, result)
        report(result["rounds"])
        common.write_json(args.json, result)


if __name__ == "__main__":
    main()
