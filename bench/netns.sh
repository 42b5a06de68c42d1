#!/usr/bin/env bash
# Bus bandwidth of all_reduce over a slow network, as a share of the line's rate. Needs root.
#
# Four network namespaces stand for four hosts, with a bridge in a fifth for the switch; what each sends is
# shaped by a token bucket. Nothing is changed outside of these namespaces, and they are gone at the end,
# whatever happens.
#   bench/netns.sh                      1 Gbit/s, all_reduce, 1 to 64 MiB
#   RATE_MBIT=200 bench/netns.sh --sizes 16M --algorithm ring
# Arguments go to `gradring bench`. PYTHON names the interpreter, SHARE the share below which it fails,
# CONGESTION the namespaces' congestion control.
set -euo pipefail

readonly hosts=4
readonly rate_mbit="${RATE_MBIT:-1000}"
readonly share="${SHARE:-0}"
readonly python="${PYTHON:-python3}"
readonly prefix="gradring-$$"
readonly network=10.77.0
readonly port=29555
readonly switch="$prefix-switch"
folder="$(mktemp -d)"
pids=()

clean_up() {
  local status=$?
  trap - EXIT
  if [ "${#pids[@]}" -gt 0 ]; then
    kill "${pids[@]}" 2>/dev/null || true
    wait "${pids[@]}" 2>/dev/null || true
  fi
  local host
  for host in "$switch" $(seq -f "$prefix-%g" 0 $((hosts - 1))); do
    ip netns delete "$host" 2>/dev/null || true
  done
  rm -rf "$folder"
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

if [ "$(id -u)" -ne 0 ] || ! command -v ip tc >/dev/null; then
  echo "netns.sh: needs root, and ip and tc (apt install iproute2)" >&2
  exit 2
fi

ip netns add "$switch"
ip -n "$switch" link add bridge type bridge
ip -n "$switch" link set bridge up
for rank in $(seq 0 $((hosts - 1))); do
  host="$prefix-$rank"
  ip netns add "$host"
  ip link add eth0 netns "$host" type veth peer name "port$rank" netns "$switch"
  ip -n "$switch" link set "port$rank" master bridge
  ip -n "$switch" link set "port$rank" up
  ip -n "$host" address add "$network.$((rank + 1))/24" dev eth0
  ip -n "$host" link set lo up
  ip -n "$host" link set eth0 up
  if [ -n "${CONGESTION:-}" ]; then
    ip netns exec "$host" sysctl -qw "net.ipv4.tcp_congestion_control=$CONGESTION"
  fi
  tc -n "$host" qdisc add dev eth0 root tbf rate "${rate_mbit}mbit" burst 256k latency 20ms
done

export GRADRING_WORLD_SIZE="$hosts"
export GRADRING_RENDEZVOUS="$network.1:$port"
GRADRING_SECRET="$("$python" -c 'import secrets; print(secrets.token_hex(32))')"
export GRADRING_SECRET
for rank in $(seq 0 $((hosts - 1))); do
  GRADRING_RANK="$rank" ip netns exec "$prefix-$rank" "$python" -m gradring bench all_reduce \
    --transport tcp --begin 1M --end 64M --rounds 5 --warmup 1 --seconds 2 --json "$folder/result.json" "$@" \
    >"$folder/$rank.log" 2>&1 &
  pids+=($!)
done
for rank in $(seq 0 $((hosts - 1))); do
  if ! wait "${pids[$rank]}"; then
    echo "netns.sh: rank $rank failed:" >&2
    cat "$folder/$rank.log" >&2
    exit 1
  fi
done
pids=()

cat "$folder/0.log"
"$python" - "$folder/result.json" "$rate_mbit" "$share" <<'END'
import json
import sys

path, rate_mbit, least = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
with open(path) as file:
    document = json.load(file)
worst = 1.0
print(f"\nshare of {rate_mbit:g} Mbit/s (the most that 1500-byte packets leave for data is 0.956)")
for operation in document["operations"]:
    for row in operation["rows"]:
        share = row["results"]["gradring"]["busbw_gbs"] * 8e3 / rate_mbit
        worst = min(worst, share)
        print(f"{operation['op']:<15}{row['bytes'] / 2**20:6g} MiB  {share:.3f}  {row['algorithm']}")
sys.exit(f"below {least:g}: {worst:.3f}" if worst < least else 0)
END
