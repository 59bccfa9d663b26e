#!/usr/bin/env bash
# Records the runs of the detection study again (hours on two cores; a trace that is there is kept), judges them and draws the pictures.
set -euo pipefail
cd "$(dirname "$0")/../../.."

case "${1:-}" in
  -h|--help)
    cat <<'TEXT'
usage: docs/studies/detection/record.sh [--judge]

Needs build/release/bin/gnomon (README.md). Trains every run of the catalogue that has no trace in docs/studies/detection/traces
yet, two at a time, then writes findings.json and the pictures beside it (python3 with matplotlib). --judge: only the latter.
TEXT
    exit 0 ;;
esac
here=docs/studies/detection
gnomon=build/release/bin/gnomon
export OMP_WAIT_POLICY=passive
if [ "${1:-}" != --judge ]; then
  data=build/data/python-doc-bytes
  if [ ! -f "$data/dataset.json" ]; then
    scripts/fetch-text build/data/text
    "$gnomon" data prepare --input build/data/text --out "$data" --tokenizer bytes
  fi
  "$gnomon" bench detect --record "$here/traces" --data "$data" --jobs 2
fi
"$gnomon" bench detect --traces "$here/traces" --json >"$here/findings.json"
python3 "$here/plots.py"
