"""The process that loads: cores, devices, forks, daemon threads, and the installed DALI and torchvision.

- cores, device: what there is to work with. views: several batches as one.
- forks, daemon_threads, no_compile: what a fork, the program's end and torch.compile must not touch.
- warn_location: warnings at the user's line. dataset_base: what our data sets share. patched: what install() asked for.
- installation, versions: of DALI and torchvision. text: columns, numbers of bytes, and a repr that does not raise.
"""
