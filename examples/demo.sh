#!/usr/bin/env bash
# One question, asked twice: in process, then through a gRPC server on a free port. `make demo` runs it.
set -euo pipefail
cd "$(dirname "$0")/.."

question=(examples/resnet50.onnx --device "${DEVICE:-a100-pcie-40gb}" --batch "${BATCH:-32}")
work=$(mktemp -d)
server=""
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; fi; rm -rf "$work"' EXIT

echo "\$ perfcast predict ${question[*]}"
perfcast predict "${question[@]}" --out "$work/in_process.json"

: >"$work/log"
PERFCAST_PORT=0 PERFCAST_ACCESS_LOG=false python server.py 2>"$work/log" &
server=$!
address=""
for _ in $(seq 300); do
  address=$(sed -n 's/.*"event": "serving".*"address": "\([^"]*\)".*/\1/p' "$work/log")
  if [ -n "$address" ] || ! kill -0 "$server" 2>/dev/null; then break; fi
  sleep 0.1
done
if [ -z "$address" ]; then
  echo "error: the server did not start:" >&2
  cat "$work/log" >&2
  exit 1
fi

echo
echo "\$ python server.py &    # listens on $address"
echo "\$ perfcast predict ${question[*]} --server $address"
perfcast predict "${question[@]}" --server "$address" --out "$work/remote.json"

cmp "$work/in_process.json" "$work/remote.json"
echo
echo "Both answers are identical to the last digit."
