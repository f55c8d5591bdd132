"""The process that loads: cores, devices, forks, and the installed DALI.

- cores, device: what there is to work with; batches of several images a sample.
- forks, decorators: what a fork, the program's end and torch.compile must not touch; names of stages in profilers.
- warn_location: warnings at the user's line. dataset_base: what our data sets share. patched: what install() asked for.
- installation: DALI, the driver, the GPUs. text: columns, numbers of bytes, and a repr that does not raise.
"""
