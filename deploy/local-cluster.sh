#!/usr/bin/env bash
# Starts three server processes on loopback and waits; Ctrl-C stops them.
#   deploy/local-cluster.sh [BINARY] [DIR]      without DIR the data is in a temporary folder, which is removed at the end
# Node i listens on 7300+100*i (clients), +1 (peers), +2 (gossip) and +80 (HTTP), so node 1 has the default ports.
set -euo pipefail
binary=${1:-bin/carillon}
dir=${2:-}
note=kept
temporary=
if [ -z "$dir" ]; then
  temporary=$(mktemp -d -t carillon-XXXXXX)
  dir=$temporary
  note="removed at the end"
fi
pids=()
stop() {
  trap - EXIT
  trap '' INT TERM # a second Ctrl-C, or the one that the servers got as well, must not leave the folder behind
  kill "${pids[@]}" 2>/dev/null || true
  wait
  if [ -n "$temporary" ]; then rm -rf "$temporary"; fi
}
trap stop EXIT INT TERM
join=127.0.0.1:7402,127.0.0.1:7502,127.0.0.1:7602
for i in 1 2 3; do
  base=$((7300 + 100 * i))
  "$binary" server --id "n$i" --dir "$dir/n$i" --client "127.0.0.1:$base" --peer "127.0.0.1:$((base + 1))" \
    --gossip "127.0.0.1:$((base + 2))" --http "127.0.0.1:$((base + 80))" --join "$join" --bootstrap-expect 3 &
  pids+=($!)
done
echo "three nodes, data in $dir ($note); try: $binary cluster members"
wait
