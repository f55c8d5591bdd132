"""Question: how long does a new program wait for its first batch, and how fast is its first epoch after that?

Method. Each measurement is a separate process; the cases take turns over --rounds rounds. A process imports torch and
torchvision and starts CUDA, which is not counted. It then imports the loader's package, creates data set and loader,
and loads two epochs. It measures
    open_s      seconds for import, data set (listing included) and loader
    first_s     from iter() to the first batch on the device
    images_s    images/s from the first batch to the end of the first epoch
    again_s     from the second iter() to its first batch
    later       images/s of the second epoch, from its first batch
The device is synchronised at each end.

Cases: NAME[:K[:D]][@KEY=VALUE,...] of cases.py, without synthetic.

Confounders.
- Nothing consumes the batches.
- Files come from memory. The order is shuffled in all cases.
- An epoch has only files / batch size batches, so a short one may end before a loader has all batches in flight.

Command.
    python benchmarks/first_epoch.py --data PHOTOS --replicate 200 --rounds 3 --json OUT.json
"""

import json
import subprocess
import sys
import time

import cases
import common
import loaders
import torch

FIGURES = {"open_s": ".2f", "first_s": ".2f", "images_s": ",.0f", "again_s": ".2f", "later": ",.0f"}


def measured(text, root, args):
    """Return the figures of one case in this process."""
    device = loaders.device_of(args)
    torch.zeros(1, device=device)
    case = cases.parse(text, args.workers)
    settings = loaders.Settings(root, device, args.batch_size, case.workers, case.depth)
    begin = time.perf_counter()
    opened = cases.open_case(case, settings)
    row = {"open_s": time.perf_counter() - begin}
    for first, speed in (("first_s", "images_s"), ("again_s", "later")):
        times, begin = [], time.perf_counter()
        for batch in opened.epoch():
            if not times:
                loaders.check(batch, settings)
                loaders.synchronise(device)
            times.append(time.perf_counter())
        loaders.synchronise(device)
        row[first] = times[0] - begin
        row[speed] = (len(times) - 1) * args.batch_size / (time.perf_counter() - times[0])
    return row


def main():
    options = common.parser(__doc__)
    options.add_argument("--cases", nargs="+", default=["ours", "ours_exact", "handwritten", "torchvision"])
    options.add_argument("--one", nargs=2, metavar=("CASE", "ROOT"), help="measure in this process, and print JSON")
    args = options.parse_args()
    if args.one:
        print(json.dumps(measured(*args.one, args)), flush=True)
        return
    with common.folder(args.data, args.replicate) as root:
        result = common.begun("first_epoch", args, images=common.describe(root, args.data))
        for number, case in common.in_turn(args.cases, args.rounds):
            run = [sys.executable, __file__, *sys.argv[1:], "--one", case, str(root)]
            output = subprocess.run(run, stdout=subprocess.PIPE, text=True, check=True).stdout
            result["rounds"].append({"round": number, "case": case, **json.loads(output.splitlines()[-1])})
            print(common.line(result["rounds"][-1]), flush=True)
            common.write_json(args.json, result)
    table = []
    for case in args.cases:
        entries = {key: common.medians(result["rounds"], key)[case] for key in FIGURES}
        table.append([case, *(format(entries[key]["median"], form) for key, form in FIGURES.items())])
    print(common.markdown(["case", *FIGURES], table))


if __name__ == "__main__":
    main()
