"""ms-swift 4.5.3, the last release before the mend of modelscope/ms-swift #10117: a known bug."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.conformance.adapters import ms_swift

TITLE = "ms-swift 4.5.3"
DISTRIBUTION = ms_swift.DISTRIBUTION
BESIDE = ms_swift.BESIDE
SOURCES = ms_swift.SOURCES
HAS_K3_LOSS = ms_swift.HAS_K3_LOSS
CUTS = ms_swift.CUTS
STAND_INS = ms_swift.STAND_INS
NO_MODE: dict[str, str] = {}
ROWS = (replace(ms_swift.BUG, control=True),)

gradient = ms_swift.gradient
