#!/bin/sh
# Starts one run as several processes on this machine, over loopback: to try before a cluster what a cluster does.
#   JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES=4 scripts/processes.sh 2 --preset smoke --out runs/two
# Ends with the status of the first process that failed, and ends the others with it.
set -u
count=$1
shift
port=${PORT:-$((20000 + $$ % 10000))}
program=${PROGRAM:-"$(dirname "$0")/../.venv/bin/grpo-jax"}
pids=
trap 'kill $pids 2>/dev/null' TERM INT
index=0
while [ "$index" -lt "$count" ]; do
    $program train "$@" --hosts.coordinator "127.0.0.1:$port" --hosts.count "$count" --hosts.index "$index" &
    pids="$pids $!"
    index=$((index + 1))
done
status=0
for pid in $pids; do
    wait "$pid"
    ended=$?
    # A signal cuts a wait short: the process is then waited for again, until it has saved.
    while kill -0 "$pid" 2>/dev/null; do
        wait "$pid"
        ended=$?
    done
    [ "$status" -ne 0 ] || status=$ended
done
exit "$status"
