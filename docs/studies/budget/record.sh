#!/usr/bin/env bash
# Records the runs of the study at the default budget, judges them and draws the picture.
set -euo pipefail
cd "$(dirname "$0")/../../.."

case "${1:-}" in
  -h|--help)
    cat <<'TEXT'
usage: docs/studies/budget/record.sh [--judge | OPTION...]

Needs build/release/bin/gnomon (README.md). Trains every run of the catalogue that has no trace in build/budget-traces, two
at a time (five hours on two cores; it goes on where it was stopped), and writes findings.json and the picture (python3 with
matplotlib). --judge: trains nothing. OPTION: of `gnomon bench detect`, as --role enforced or --seeds 1.
TEXT
    exit 0 ;;
esac
here=docs/studies/budget
gnomon=build/release/bin/gnomon
traces=build/budget-traces
export OMP_WAIT_POLICY=passive
if [ "${1:-}" != --judge ]; then
  data=build/data/python-doc-bytes
  if [ ! -f "$data/dataset.json" ]; then
    scripts/fetch-text build/data/text
    "$gnomon" data prepare --input build/data/text --out "$data" --tokenizer bytes
  fi
  mkdir -p "$traces"
  "$gnomon" bench detect --study budget --record "$traces" --data "$data" --jobs 2 "$@"
fi
"$gnomon" bench detect --study budget --traces "$traces" --json >"$here/findings.json"
python3 "$here/plots.py"
