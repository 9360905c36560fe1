# shellcheck shell=bash
# Sourced with pinned packages by the other files: makes a temporary folder with a virtual environment of these,
# "$place/venv", goes there, and removes it at the end.
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python3 -m venv "$place/venv"
"$place/venv/bin/pip" install --quiet "$@"
cd "$place" || exit 1
