"""DALI, which nothing else imports.

pipeline submits and receives batches. definition says what a pipeline does, with graph, which makes DALI's operators of
steps. transfer has what is under way, and what comes out. warm starts nvJPEG in the background. forks ends pipelines.
"""
