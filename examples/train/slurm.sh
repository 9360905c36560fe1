#!/usr/bin/env bash
# Run gsm8k.sh or math.sh on the nodes of a SLURM job, on a Ray that the job starts and ends.
#
#   ALGO=gvpo sbatch --nodes=2 --gpus-per-node=8 examples/train/slurm.sh math [key=value …]
#
# Submit it from the root of this checkout. Each node needs verl and this package in the Python that sbatch's PATH
# finds. All nodes must see this checkout, DATA, OUTPUTS and a model's folder under the same absolute paths.
#
# A test runs it with stand-ins for sbatch, srun and scontrol on two real Rays of one machine, with a python3 that only
# records its arguments. It was not run by SLURM itself.
#SBATCH --job-name=grpo-verl-ext
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
set -xeuo pipefail

case ${1:-} in
  gsm8k | math) TASK=$1 ;;
  *)
    echo "slurm.sh: the task is '${1:-}'; valid are gsm8k, math. Type: sbatch examples/train/slurm.sh gsm8k" >&2
    exit 1
    ;;
esac
NODES=${SLURM_JOB_NUM_NODES:?"is missing; this is a job of SLURM. Type: sbatch --nodes=2 examples/train/slurm.sh $TASK"}
PORT=${PORT:-6379}
# options of `ray start`
RAY_START=${RAY_START:-}

HOSTS=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
HEAD=${HOSTS%%$'\n'*}
HEAD_IP=$(srun --nodes=1 --ntasks=1 --nodelist="$HEAD" hostname --ip-address | cut -d ' ' -f 1)
ADDRESS=$HEAD_IP:$PORT

nodes_of_ray() { (ray status --address "$ADDRESS" 2> /dev/null || true) | grep --count '^ 1 node_' || true; }

wait_for_nodes() {
  for ((waited = 0; $(nodes_of_ray) < $1; waited++)); do
    if ((waited > 150)); then
      echo "slurm.sh: Ray at $ADDRESS has not $1 nodes after five minutes; see the output of ray start above" >&2
      exit 1
    fi
    sleep 2
  done
}

trap 'kill $(jobs -p)' EXIT
# shellcheck disable=SC2086
srun --nodes=1 --ntasks=1 --nodelist="$HEAD" --overlap \
  ray start --head --node-ip-address="$HEAD_IP" --port="$PORT" --block $RAY_START &
wait_for_nodes 1
if ((NODES > 1)); then
  # shellcheck disable=SC2086
  srun --nodes=$((NODES - 1)) --ntasks=$((NODES - 1)) --exclude="$HEAD" --overlap \
    ray start --address="$ADDRESS" --block $RAY_START &
  wait_for_nodes "$NODES"
fi

export RAY_ADDRESS=$ADDRESS N_NODES=$NODES
export N_GPUS=${N_GPUS:-${SLURM_GPUS_ON_NODE:-8}}
bash "$SLURM_SUBMIT_DIR/examples/train/$TASK.sh" "${@:2}"
