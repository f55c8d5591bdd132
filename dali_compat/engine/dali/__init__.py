"""DALI, which nothing else imports.

pipeline submits and receives batches; graph makes DALI's operators of steps; feed has what is under way. warm starts
nvJPEG in the background. forks and affinity look after DALI's threads.
"""
