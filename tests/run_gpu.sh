#!/bin/bash
# The whole GPU suite in one call:  bash tests/run_gpu.sh OUT_DIR
#
# Writes OUT_DIR/machine.txt, memory.txt (of the GPUs, by process) and a log for each part of the suite: parts run side by
# side. The exit status is that of a part that failed (124: stopped after TEST_SECONDS, 500 unless set; its log still has what
# failed, and where a test was that took longer than 150 s). Where the driver is slow to open decoders, all parts together take
# more than ten minutes: PARTS="processes contract parity own no_engine", and then PARTS="start faults rest", take less each. On
# any machine with a GPU, DALI and pytest this is all there is to it. DATA may name a folder of photos in ImageFolder layout; without
# it the tests take those of docs/photos.
#
# A host that reaches no package index can bring DALI and photos along in a folder .gpu, packed elsewhere:
#
#     pip install --target site nvidia-dali-cuda130 && tar cJf .gpu/site.tar.xz -C site .
#     tar cf .gpu/photos.tar -C PHOTOS .
#
# Sourced, it runs no tests: it only puts DALI on the path and sets DATA. So benchmarks run there with
#
#     . tests/run_gpu.sh; python3 benchmarks/imagefolder.py --data $DATA --replicate 2000 --json OUT_DIR/imagefolder.json

if [ -f .gpu/site.tar.xz ] && [ ! -d /tmp/site/nvidia ]; then
    mkdir -p /tmp/site && xz -dc .gpu/site.tar.xz | tar x -C /tmp/site
fi
if [ -d /tmp/site/nvidia ]; then # from an earlier call, too
    export PYTHONPATH=/tmp/site${PYTHONPATH:+:$PYTHONPATH}
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
if [ -f .gpu/photos.tar ]; then
    mkdir -p /tmp/photos && tar xf .gpu/photos.tar -C /tmp/photos
fi
if [ -d /tmp/photos ] && [ -z "${DATA:-}" ]; then
    export DATA=/tmp/photos
fi
export PYTHONUNBUFFERED=1

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    out=${1:?usage: bash tests/run_gpu.sh OUT_DIR}
    mkdir -p "$out"
    {
        nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader
        nproc
        python3 -c 'import sys, torch, torchvision, nvidia.dali as dali
for name, version in ("python", sys.version.split()[0]), *((m.__name__, m.__version__) for m in (torch, torchvision, dali)):
    print(name, version)'
    } 2>&1 | tee "$out/machine.txt"
    if ! python3 -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
        echo "no CUDA GPU here: every test would be skipped" | tee "$out/pytest.txt"
        exit 1
    fi
    part() { # NAME PYTEST'S ARGUMENTS...
        timeout -s INT -k 20 "${TEST_SECONDS:-500}" python3 -m pytest -m gpu -q -p no:cacheprovider --durations=5 \
            -o faulthandler_timeout=150 "${@:2}" > "$out/$1.txt" 2>&1
    }
    nvidia-smi --query-compute-apps=timestamp,gpu_uuid,pid,used_memory --format=csv -l 10 > "$out/memory.txt" & watch=$!
    c=tests/contract worst=0 jobs=() begun=()
    threads=$(($(nproc) / 4))
    export OMP_NUM_THREADS=$((threads > 0 ? threads : 1)) # parts would wait for each other's
    begin() { # as part
        [[ " ${PARTS:-$1} " == *" $1 "* ]] || return
        part "$@" &
        jobs+=($!) begun+=("$1")
    }
    if begin processes $c/test_processes.py; then # alone: it watches the GPU's free memory
        wait "${jobs[-1]}" || worst=$?
    fi
    # Few side by side: the driver lets one program at a time open decoders.
    begin contract $c --ignore $c/test_processes.py --ignore $c/test_start.py tests/faults/test_lag.py
    begin start $c/test_start.py tests/faults/test_crash.py # many programs, each with a decoder of its own
    begin faults tests/faults --ignore tests/faults/test_crash.py --ignore tests/faults/test_lag.py \
        --ignore tests/faults/test_own_programs.py
    begin parity tests/parity
    begin own tests/faults/test_own_programs.py
    DALI_COMPAT_JPEG_ENGINE=0 begin no_engine $c/test_on_gpu.py $c/test_batch.py tests/parity/test_photos.py
    begin rest tests --ignore $c --ignore tests/faults --ignore tests/parity
    for job in "${jobs[@]}"; do wait "$job" || worst=$?; done
    kill $watch
    for name in "${begun[@]}"; do
        echo "== $name"
        grep -E "^(FAILED|ERROR|E   +[A-Z]\w*(Error|Exception|Disagreement))|(passed|failed|error).* in [0-9]" "$out/$name.txt"
    done
    exit $worst
fi
