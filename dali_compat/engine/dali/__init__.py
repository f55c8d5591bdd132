"""DALI, which nothing else imports.

pipeline submits and receives batches. definition says what a pipeline does, with graph, which makes DALI's operators of
steps. feed has what is under way, received what comes out. warm starts nvJPEG in the background. forks and affinity
look after DALI's threads.
"""
