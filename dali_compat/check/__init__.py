"""`python -m dali_compat check`: what a folder or an archive holds, file by file.

places gives the files, process_map has processes look at them (looking: one file), findings counts, wording tells a
person.
"""
