#!/bin/bash
# Train on several nodes under SLURM: sbatch --nodes 4 examples/slurm.sh my-recipe.toml --output runs/mine
#
# One torchrun a node starts a rank for each GPU. All nodes need the same code, recipe, data and run folder.
# The same command resumes; SLURM does so itself after a preemption or a time limit (--requeue, --signal).
#SBATCH --job-name=hornbook
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --signal=B:TERM@300
#SBATCH --open-mode=append

set -u

GPUS_PER_NODE=${GPUS_PER_NODE:-${SLURM_GPUS_ON_NODE:-1}}
FIRST_NODE=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
PORT=$((20000 + SLURM_JOB_ID % 20000))
RESTARTS=${RESTARTS:-3}

# torchrun ends ranks with SIGKILL after this many seconds; a checkpoint must be written by then
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-240}

srun --kill-on-bad-exit=1 python -m torch.distributed.run \
    --nnodes "$SLURM_JOB_NUM_NODES" \
    --nproc-per-node "$GPUS_PER_NODE" \
    --max-restarts "$RESTARTS" \
    --rdzv-id "$SLURM_JOB_ID" \
    --rdzv-backend c10d \
    --rdzv-endpoint "$FIRST_NODE:$PORT" \
    -m hornbook train "$@" &
STEP=$!

# SIGTERM 300 s before the limit: every rank saves and stops, and the job goes back into the queue
STOPPED=
trap 'STOPPED=yes; kill -TERM "$STEP"' TERM
wait "$STEP"
CODE=$?
if [ -n "$STOPPED" ]; then
    wait "$STEP"
    CODE=$?
    [ "$CODE" -ne 0 ] && scontrol requeue "$SLURM_JOB_ID"
fi
exit "$CODE"
