"""What pip asks where somebody types `pip install .` in the root, see pyproject.toml: the cookbook
is no package. Without this pip would end in a traceback."""

import sys


def build_wheel(*_: object, **__: object) -> None:
    sys.exit(
        "the cookbook is copied, not installed; for the doctor: pip install ./doctor, "
        "or behind an address of git: #subdirectory=doctor"
    )


build_editable = build_sdist = build_wheel
get_requires_for_build_wheel = get_requires_for_build_editable = build_wheel
prepare_metadata_for_build_wheel = prepare_metadata_for_build_editable = build_wheel
