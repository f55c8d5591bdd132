import sys

from docs.pages import ROOT

sys.path.append(str(ROOT / "benchmarks"))  # measured.py, plot.py, tables.py
