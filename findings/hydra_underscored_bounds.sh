#!/usr/bin/env bash
# One expects: two numbers joined by an underscore, as verl 0.9.1 takes IcePop's bounds, reach the program as that text.
# hydra-core 1.3.8 with omegaconf 2.3.1: `0.5_5.0` stays a text, and `0.5_2` becomes the number 0.52, for digits may have
# underscores between them. Quotes keep the text. Hydra's grammar of overrides; in YAML files the same.
# `algorithm.rollout_correction.rollout_is_threshold=0.5_2` therefore caps weights at 0.52: another algorithm, no error.
set -euo pipefail
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet hydra-core==1.3.8 omegaconf==2.3.1
"$place/venv/bin/python" - << 'PYTHON'
import sys

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

SEEN = [
    "override bounds=0.5_5.0: '0.5_5.0'",
    "override bounds=0.5_2: 0.52",
    "override bounds=\"0.5_2\": '0.5_2'",
    "YAML bounds: 0.5_2: 0.52",
]
parser = OverridesParser.create()
seen = []
for word in ("bounds=0.5_5.0", "bounds=0.5_2", 'bounds="0.5_2"'):
    value = parser.parse_override(word).value()
    seen.append("override %s: %r" % (word, value if isinstance(value, float) else str(getattr(value, "text", value))))
seen.append("YAML bounds: 0.5_2: %r" % OmegaConf.create("bounds: 0.5_2").bounds)
print("\n".join(seen))
sys.exit(seen != SEEN)
PYTHON
