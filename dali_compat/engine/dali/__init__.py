"""The DALI engine. No other package imports DALI.

- pipeline: submits and receives batches.
- definition: defines a pipeline. graph: the DALI operators of each step.
- transfer: input arrays in flight, and output tensors.
- warm: starts nvJPEG in the background.
- forks: handles pipelines at forks, and closes them at exit.
"""
