#!/bin/bash
# The whole GPU suite in one call:  bash tests/run_gpu.sh OUT_DIR
#
# Writes OUT_DIR/machine.txt, memory.txt (of the GPUs, by process) and a log for each part of the suite: parts run side by
# side, on two GPUs where there are so many. The exit status is that of a part that failed (124: stopped after TEST_SECONDS,
# 400 unless set; its log says where it was). PARTS may name some of them ("contract start"). On any machine with a GPU, DALI
# and pytest this is all there is to it. DATA may name a folder of photos in ImageFolder layout; without it the tests take
# those of docs/photos.
#
# A host that reaches no package index can bring DALI and photos along in a folder .gpu, packed elsewhere:
#
#     pip install --target site nvidia-dali-cuda130 && tar cJf .gpu/site.tar.xz -C site .
#     tar cf .gpu/photos.tar -C PHOTOS .
#
# Sourced, it runs no tests: it only puts DALI on the path and sets DATA. So benchmarks run there with
#
#     . tests/run_gpu.sh; python3 benchmarks/imagefolder.py --data $DATA --replicate 2000 --json OUT_DIR/imagefolder.json

if [ -f .gpu/site.tar.xz ]; then
    if [ ! -d /tmp/site/nvidia ]; then
        mkdir -p /tmp/site && xz -dc .gpu/site.tar.xz | tar x -C /tmp/site
    fi
    export PYTHONPATH=/tmp/site${PYTHONPATH:+:$PYTHONPATH}
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
if [ -f .gpu/photos.tar ]; then
    mkdir -p /tmp/photos && tar xf .gpu/photos.tar -C /tmp/photos
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
    one=0 other=0
    if [ "$(nvidia-smi -L | wc -l)" -gt 1 ]; then one=0,1 other=1,0; fi # both see two, and work on the first of these
    part() { # GPUS NAME PYTEST'S ARGUMENTS...
        # who is stopped says where it was
        CUDA_VISIBLE_DEVICES=$1 timeout -s ABRT -k 9 "${TEST_SECONDS:-400}" python3 -m pytest -m gpu -q -p no:cacheprovider --durations=5 \
            "${@:3}" > "$out/$2.txt" 2>&1
    }
    nvidia-smi --query-compute-apps=timestamp,gpu_uuid,pid,used_memory --format=csv -l 10 > "$out/memory.txt" & watch=$!
    c=tests/contract cases=tests/parity/test_cases.py worst=0 jobs=() begun=()
    threads=$(($(nproc) / 8))
    export OMP_NUM_THREADS=$((threads > 0 ? threads : 1)) # parts would wait for each other's
    begin() { # as part
        [[ " ${PARTS:-$2} " == *" $2 "* ]] || return
        part "$@" &
        jobs+=($!) begun+=("$2")
    }
    begin_one() {
        begin $one kept $c/test_cache.py $c/test_resident.py
        begin $one decoders $c/test_jpeg_engine.py $c/test_timm_policies.py
        begin $one contract $c $(printf -- ' --ignore %s' $c/test_{cache,resident,jpeg_engine,timm_policies,start,processes}.py)
        begin $one start $c/test_start.py # many programs, each with a decoder of its own
        begin $one v1 $cases -k "v1 and not exact"
        begin $one v1_exact $cases -k "v1 and exact"
        begin $one faults tests/faults
    }
    if [ $one != $other ]; then begin_one; fi
    if begin $other processes $c/test_processes.py; then # alone on its GPU: it watches the free memory
        wait "${jobs[-1]}" || worst=$?
    fi
    if [ $one = $other ]; then begin_one; fi
    begin $other v2 $cases -k "not v1 and not exact"
    begin $other v2_exact $cases -k "not v1 and exact"
    begin $other ties tests/parity/test_ties.py
    begin $other parity tests/parity --ignore $cases --ignore tests/parity/test_ties.py
    begin $other rest tests --ignore $c --ignore tests/faults --ignore tests/parity
    for job in "${jobs[@]}"; do wait "$job" || worst=$?; done
    kill $watch
    for name in "${begun[@]}"; do
        echo "== $name"
        grep -E "^(FAILED|ERROR|E   +[A-Z]\w*(Error|Exception|Disagreement))|(passed|failed|error).* in [0-9]" "$out/$name.txt"
    done
    exit $worst
fi
