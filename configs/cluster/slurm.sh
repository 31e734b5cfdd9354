#!/bin/bash
# sbatch configs/cluster/slurm.sh --recipe voice_clone --model.source Qwen/Qwen3-TTS-12Hz-1.7B-Base --data.train /shared/me/train.jsonl
#
# Two nodes with eight GPUs each, one `accelerate launch` per node. Submit it from a folder that all nodes see, with the environment active
# (sbatch passes it on). RUN_DIR is the run's folder (default runs/slurm-JOBID); LAUNCH_FILE is the launch file (default two_nodes.yaml).
# Five minutes before the time limit the run saves a checkpoint and stops; the job is then requeued, and resumes from it.
# `scancel --signal=USR1 --batch JOBID` does the same at once. A plain `scancel JOBID` ends the job. A preempted job is requeued by SLURM
# itself; its ranks save when they get SIGTERM, if the grace time is long enough.
#SBATCH --job-name=overtone
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=32
#SBATCH --time=24:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:USR1@300
#SBATCH --output=slurm-%j.log
set -u

export MAIN_ADDRESS MAIN_PORT GPUS_PER_NODE LAUNCH_FILE RUN_DIR
MAIN_ADDRESS=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
MAIN_PORT=$((20000 + SLURM_JOB_ID % 10000))
GPUS_PER_NODE=${SLURM_GPUS_ON_NODE:-8}
LAUNCH_FILE=${LAUNCH_FILE:-$(overtone where two_nodes.yaml)} || exit
RUN_DIR=${RUN_DIR:-runs/slurm-$SLURM_JOB_ID}
rm -f "$RUN_DIR/STOP" # of a job that was killed before its run had seen it

# The ranks look for this file after each step. A signal to the launchers would give the ranks 30 seconds to save.
stop_and_requeue() {
    requeue=yes
    mkdir -p "$RUN_DIR" && touch "$RUN_DIR/STOP"
}
requeue=no
trap stop_and_requeue USR1

# SLURM_PROCID is the number of the node, as each has one task.
srun --kill-on-bad-exit=1 bash -c 'exec accelerate launch --config_file "$LAUNCH_FILE" \
    --num_machines "$SLURM_NNODES" --num_processes "$((SLURM_NNODES * GPUS_PER_NODE))" --machine_rank "$SLURM_PROCID" \
    --main_process_ip "$MAIN_ADDRESS" --main_process_port "$MAIN_PORT" \
    -m overtone.finetune.train "$@" --run.dir "$RUN_DIR"' launch "$@" &
launched=$!

wait "$launched"
while kill -0 "$launched" 2>/dev/null; do # `wait` returns early when the signal arrives
    wait "$launched"
done
wait "$launched" # again, since the launcher may have ended while the signal was handled: bash keeps its exit code
code=$?
if [ "$requeue" = yes ] && grep -q '"reason": "stopped by the file' "$RUN_DIR/exit.json"; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
