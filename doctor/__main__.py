"""python doctor runs this file; what it does is in ddp_doctor/command.py."""

import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parent)
from ddp_doctor.command import main  # noqa: E402

main()
