#!/usr/bin/env bash
# One expects: `actor_rollout_ref.actor.use_prefix_grouper=true` has the actor compute a prompt once for its responses.
# verl 0.9.1: no engine reads the key. `prefix_grouper_utils` is imported nowhere, and no caller passes `use_prefix_grouper`
# to `apply_monkey_patch`, so that every row is fed whole, as without; only the older trainers' balancing of rows reads it.
# A training that sets it to save a third of its time or memory saves nothing, and says nothing.
set -euo pipefail
# shellcheck source=findings/venv.bash
source "$(dirname "$0")/venv.bash" verl==0.9.1
"$place/venv/bin/python" - << 'PYTHON'
import ast
import sys
from importlib.metadata import distribution

SEEN = ["imports of prefix_grouper_utils: 0", "calls that pass use_prefix_grouper: 0", "engines that name it: 0"]
files = [file for file in distribution("verl").files or () if file.suffix == ".py"]
texts = {str(file): file.locate().read_text() for file in files}
nodes = [node for text in texts.values() for node in ast.walk(ast.parse(text))]
imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and "prefix_grouper_utils" in str(node.module)]
imports += [node for node in nodes if isinstance(node, ast.alias) and node.name.endswith("prefix_grouper_utils")]
passed = [node for node in nodes if isinstance(node, ast.keyword) and node.arg == "use_prefix_grouper"]
engines = [name for name, text in texts.items() if "/workers/engine" in name and "prefix_grouper" in text]
assert any("prefix_grouper" in name for name in texts), "the module is there"
counts = zip((line.split(":")[0] for line in SEEN), (imports, passed, engines), strict=True)
seen = [f"{name}: {len(found)}" for name, found in counts]
print("\n".join(seen))
sys.exit(seen != SEEN)
PYTHON
