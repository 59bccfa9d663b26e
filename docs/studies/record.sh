#!/usr/bin/env bash
# Records the runs of a study, judges them and draws the pictures.
set -euo pipefail
cd "$(dirname "$0")/../.."

usage() {
  cat <<'TEXT'
usage: docs/studies/record.sh STUDY [--judge | OPTION...]

STUDY: detection or budget, a folder beside this script. Needs build/release/bin/gnomon (README.md). Unpacks STUDY/traces.tar.xz
into build/STUDY-traces, trains every run of the catalogue that has no trace there, two at a time (hours on two cores; it goes on
where it was stopped), packs them again, and writes findings.json and the pictures (python3 with matplotlib). Remove a trace from
that folder to record it anew. --judge: trains nothing. OPTION: of `gnomon bench detect`, as --role enforced or --seeds 1.
TEXT
}
case "${1:-}" in
  -h|--help) usage; exit 0 ;;
  detection) name=dense ;;
  budget) name=budget ;;
  *) usage >&2; exit 2 ;;
esac
here=docs/studies/$1
gnomon=build/release/bin/gnomon
traces=build/$1-traces
shift
export OMP_WAIT_POLICY=passive
if [ ! -d "$traces" ]; then
  mkdir -p "$traces.part"
  if [ -f "$here/traces.tar.xz" ]; then tar xJf "$here/traces.tar.xz" -C "$traces.part"; fi
  mv "$traces.part" "$traces"
fi
if [ "${1:-}" != --judge ]; then
  data=build/data/python-doc-bytes
  if [ ! -f "$data/dataset.json" ]; then
    scripts/fetch-text build/data/text
    "$gnomon" data prepare --input build/data/text --out "$data" --tokenizer bytes
  fi
  "$gnomon" bench detect --study "$name" --record "$traces" --data "$data" --jobs 2 "$@"
  # The same traces give the same archive.
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=644 -cf - -C "$traces" $(cd "$traces" && ls -- *.jsonl) |
    xz -9e >"$here/traces.tar.xz"
fi
"$gnomon" bench detect --study "$name" --traces "$traces" --json >"$here/findings.json"
python3 "$here/plots.py"
