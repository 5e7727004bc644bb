#!/bin/sh
# One task for each GPU of four nodes with eight; change the next lines to what there is.
#   sbatch scripts/slurm.sh runs/mine --preset checkpoint --model.path models/mine --task.train sums.jsonl ...
# SLURM sends SIGTERM to the tasks five minutes before the time is over or when the job is preempted; the run saves and
# ends with status 143, and the job queues itself again to go on from there.
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
set -u
out=$1
shift
export JAX_COMPILATION_CACHE_DIR="${JAX_COMPILATION_CACHE_DIR:-$PWD/compiled}"
# Decided once, here: tasks that looked for themselves could see what others have begun to write.
[ -e "$out/config.json" ] && set -- --resume "$@"
srun --kill-on-bad-exit=0 "${PROGRAM:-.venv/bin/grpo-jax}" train --hosts.detect --out "$out" "$@"
status=$?
if [ "$status" -eq 143 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
