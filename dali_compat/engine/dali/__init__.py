"""DALI. No other package imports it.

pipeline submits and receives batches. definition defines a pipeline, and graph its operators for each step. transfer
contains inputs in flight and outputs. warm starts nvJPEG in the background. forks closes pipelines at forks and at
exit.
"""
