"""python FOLDER runs this file; what it does is in command.py."""

import importlib
import sys
from pathlib import Path

here = Path(__file__).resolve().parent
sys.path[0] = str(here.parent)
importlib.import_module(f"{here.name}.command").main()
