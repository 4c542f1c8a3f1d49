#!/usr/bin/env bash
# Runs all checks that need a GPU: the device tests in shards, a GPT's step compared with PyTorch's, also on ranks that share
# the GPU, collectives of two ranks that share it, and the trainer (gpu_train.py). Prints the tables of docs/gpu.md. Builds
# and installs nothing.
#
#   ninja -C BUILD device_test gpt_step lockstep_command lockstep-bench lockstep-train lockstep-eval lockstep-generate
#                                         on any host that can build
#   tools/gpu_day.sh BUILD OUT [SHARDS]   on the host with the GPU; logs go to OUT
#
# Exits with 1 if a case, a shard or a step failed. PYTHON (python3) must have the torch that BUILD was made with; its
# libraries are found through it. With MNIST, a folder of its four IDX files, one rank and two train on it.
set -euo pipefail
if [ $# -lt 2 ]; then echo "usage: tools/gpu_day.sh BUILD OUT [SHARDS]" >&2; exit 2; fi
build=$1 out=$2 shards=${3:-8}
python=${PYTHON:-python3}
bench=$(cd "$(dirname "$0")/.." && pwd)/bench/device
mkdir -p "$out"
rm -rf "$out/train" "$out"/mnist-* "$out"/device.*.log   # of an earlier call, which may have had more shards
torch=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
export LD_LIBRARY_PATH="$torch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" LOCKSTEP_TEST_SECONDS="${LOCKSTEP_TEST_SECONDS:-60}"

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
"$python" -c 'import torch; print("torch", torch.__version__, "NCCL", ".".join(map(str, torch.cuda.nccl.version())))'

pids=()
for ((i = 0; i < shards; ++i)); do
  OMP_NUM_THREADS=1 GTEST_TOTAL_SHARDS=$shards GTEST_SHARD_INDEX=$i \
    timeout -s KILL 400 "$build/tests/device_test" > "$out/device.$i.log" 2>&1 < /dev/null &
  pids+=($!)
done
status=0
for i in "${!pids[@]}"; do
  ended=0
  wait "${pids[$i]}" || ended=$?
  if [ "$ended" -ne 0 ]; then status=1; fi
  if ! grep -q '^\[==========\] .* ran\.' "$out/device.$i.log"; then
    echo "shard $i ended with $ended in $(grep '^\[ RUN' "$out/device.$i.log" | tail -1)"
    status=1
  fi
done
count() { cat "$out"/device.*.log | grep -c "$1" || true; }
echo "device_test: $(count '^\[       OK') passed, $(count '^\[  FAILED .*ms)$') failed, $(count '^\[  SKIPPED .*ms)$') skipped"
cat "$out"/device.*.log | grep -E '^\[  (FAILED|SKIPPED) .*ms\)$' | sort || true

one() { timeout -s KILL 60 "$@" < /dev/null || { echo "failed: $*"; status=1; }; }
for dtype in float32 bf16 float32 bf16; do
  one "$python" "$bench/gpt_step.py" $dtype
  one "$build/bin/lockstep" run -n 1 "$build/bench/gpt_step" dp=-1 $dtype
done
for mesh in dp=2 fsdp=2 tp=2 pp=2; do one "$build/bin/lockstep" run -n 2 --share-gpus "$build/bench/gpt_step" $mesh bf16; done
one "$build/bin/lockstep" run -n 2 --share-gpus "$build/bin/lockstep" bench collectives --device cuda
"$python" "$(dirname "$0")/gpu_train.py" "$build/bin" "$out/train" || status=1
if [ -n "${MNIST:-}" ]; then
  for ranks in 1 2; do
    LOCKSTEP_SHARE_GPUS=1 one "$build/bin/lockstep" train mnist --data "$MNIST" --epochs 2 --ranks $ranks --out "$out/mnist-$ranks"
  done
fi
exit $status
