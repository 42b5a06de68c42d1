#!/usr/bin/env bash
# The side-by-side figures of the README: gradring and its peers on this machine, in about 12 minutes.
#   bench/compare.sh            all sizes
#   bench/compare.sh --quick    fewer sizes and rounds, in about 4 minutes
# Writes bench/results/*.json, *.png and table.md. PYTHON names the interpreter that has gradring, torch and
# mpi4py; PEER_PYTHON another one for the peers; RESULTS another folder; RANKS and TRANSPORTS fewer runs.
# BIND=core keeps every rank of every library on one core.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly python="${PYTHON:-python3}"
readonly results="${RESULTS:-bench/results}"
readonly operations=(all_reduce reduce_scatter all_gather broadcast)
options=(--begin 4 --end 64M --factor 4 --rounds 7 --seconds 0.3)
case "${1:-}" in
  "") ;;
  --quick) options=(--sizes 4,1K,64K,1M,16M,64M --rounds 5 --seconds 0.15 --warmup 2) ;;
  *)
    echo "compare.sh: unknown option '$1' (--quick)" >&2
    exit 2
    ;;
esac

# On a machine that does other things as well, the figures are of the machine.
nice=()
if nice -n -20 true 2>/dev/null; then nice=(nice -n -20); fi

mkdir -p "$results"
for transport in ${TRANSPORTS:-shm tcp}; do
  mpi=openmpi
  if [ "$transport" = tcp ]; then mpi=openmpi-tcp; fi
  for ranks in ${RANKS:-2 4}; do
    name="$transport-$ranks"
    echo "== $name: $(date +%T)"
    "${nice[@]}" "$python" -m gradring bench "${operations[@]}" -n "$ranks" --transport "$transport" \
      --compare "gloo,$mpi" --peer-python "${PEER_PYTHON:-$python}" --bind "${BIND:-none}" "${options[@]}" \
      --json "$results/$name.json" --plot "$results/$name.png"
  done
done
commit="$(git describe --always --dirty 2>/dev/null || echo unknown)"
"$python" bench/summary.py --commit "$commit" "$results"/*.json >"$results/table.md"
echo "== $results/table.md"
