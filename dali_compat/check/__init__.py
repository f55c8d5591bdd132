"""`python -m dali_compat check`: what a folder or an archive holds, file by file.

file_sources gives the files, process_map has processes look at them (inspect_file: one file), report counts what they
find and says it.
"""
