#!/usr/bin/env bash
# One expects: `html_search_scorer` is a path relative to the folder of conf.py, as Sphinx's page on options says, like
# `html_static_path`.
# Sphinx 9.0.4: it is opened relative to the folder in which sphinx-build was started, so the usual `sphinx-build docs site`
# ends in a traceback, at its last stage; inside of docs the same project builds. `search/__init__.py`, IndexBuilder:
# `open(scoring, 'rb')`. An absolute path made from conf.py's `__file__` works everywhere.
set -euo pipefail
# shellcheck source=findings/venv.bash
source "$(dirname "$0")/venv.bash" sphinx==9.0.4
mkdir "$place/docs"
cat > "$place/docs/conf.py" << 'CONF'
html_search_scorer = "scorer.js"
CONF
printf 'Title\n=====\n' > "$place/docs/index.rst"
printf 'var Scorer = { title: 15 };\n' > "$place/docs/scorer.js"

built() {
  cd "$1"
  if "$place/venv/bin/sphinx-build" -q "$2" "$place/$3" &> "$place/said"; then
    echo built
  else
    grep -o "No such file or directory: 'scorer.js'" "$place/said"
  fi
}
seen="beside docs: $(built "$place" docs outside)
in docs: $(built "$place/docs" . inside)"
echo "$seen"
[[ $seen == "beside docs: No such file or directory: 'scorer.js'
in docs: built" ]]
