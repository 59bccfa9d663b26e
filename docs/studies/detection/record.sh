#!/usr/bin/env bash
# Records the runs of the detection study again (hours on two cores; a trace that is there is kept), judges them and draws the pictures.
set -euo pipefail
cd "$(dirname "$0")/../../.."

case "${1:-}" in
  -h|--help)
    cat <<'TEXT'
usage: docs/studies/detection/record.sh [--judge]

Needs build/release/bin/gnomon (README.md). Unpacks traces.tar.xz into build/detection-traces, trains every run of the catalogue
that has no trace there, two at a time, packs them again, and writes findings.json and the pictures (python3 with matplotlib).
Remove a trace from that folder to record it anew. --judge: trains nothing.
TEXT
    exit 0 ;;
esac
here=docs/studies/detection
gnomon=build/release/bin/gnomon
traces=build/detection-traces
export OMP_WAIT_POLICY=passive
if [ ! -d "$traces" ]; then
  mkdir -p "$traces.part"
  tar xJf "$here/traces.tar.xz" -C "$traces.part"
  mv "$traces.part" "$traces"
fi
if [ "${1:-}" != --judge ]; then
  data=build/data/python-doc-bytes
  if [ ! -f "$data/dataset.json" ]; then
    scripts/fetch-text build/data/text
    "$gnomon" data prepare --input build/data/text --out "$data" --tokenizer bytes
  fi
  "$gnomon" bench detect --record "$traces" --data "$data" --jobs 2
  # The same traces give the same archive.
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=644 -cf - -C "$traces" $(cd "$traces" && ls -- *.jsonl) |
    xz -9e >"$here/traces.tar.xz"
fi
"$gnomon" bench detect --traces "$traces" --json >"$here/findings.json"
python3 "$here/plots.py"
