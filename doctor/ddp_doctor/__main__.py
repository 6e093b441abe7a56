"""python FOLDER runs this file; what it does is in command.py."""

import importlib
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

# Nothing else is looked for in the folder above: a project may have a statistics.py there.
here = Path(__file__).resolve().parent
own = (here, here.parent, Path.cwd())
sys.path[:] = [path for path in sys.path if path and Path(path).resolve() not in own]
spec = PathFinder.find_spec(here.name, [str(here.parent)])
sys.modules[here.name] = module_from_spec(spec)
spec.loader.exec_module(sys.modules[here.name])
importlib.import_module(f"{here.name}.command").main()
