#!/usr/bin/env bash
# Three calls of at most nine minutes on one GPU. What they take, and which scenes each needs: README.md beside this.
#
#   bash benchmarks/plans/h200.sh {1|2|3} DATA OUT [ROWS...]
#
# DATA: the folder of scenes. OUT: the folder that rows are appended to. ROWS: rows of earlier calls, which are not
# measured again (benchmarks/results/h200-variants.jsonl has many; README.md says when not to give it). Environment:
# LIMIT (seconds, 530), PYTHON, COMMIT (to record), MORE (further options of bench_variants.py, such as --rehearse).
set -u
call=$1 data=$2 out=$3
shift 3
limit=${LIMIT:-530} python=${PYTHON:-python}
cd "$(dirname "$0")/../.." || exit 1
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$out"

# variants PLAN...: the plans in order, for the seconds that are left. What fails ends nothing else. Of two processes one
# trains while the other opens images and compiles.
variants() {
    local plans=() done=() worker
    for plan in "$@"; do plans+=("benchmarks/plans/$plan.json"); done
    for file in "${rows[@]}"; do done+=(--done "$file"); done
    for worker in 0 1; do
        # shellcheck disable=SC2086
        "$python" benchmarks/bench_variants.py --plan "${plans[@]}" --data "$data" --within $((limit - SECONDS)) \
            --share $worker/2 --turns "$out/turns.lock" ${done[@]+"${done[@]}"} ${COMMIT:+--commit "$COMMIT"} \
            --out "$out/variants.jsonl" ${MORE:-} &
    done
    wait
}

# poses: lego with right, wrong and refined poses.
poses() {
    "$python" benchmarks/bench_poses.py "$data/lego" --device cuda --seconds 25 --views 6 --perturb-degrees 1 \
        --perturb-distance 0.01 --out "$out/poses.jsonl"
}

rows=("$@")
case $call in
1) variants forming unbounded captures longer ;;
2)
    poses
    variants forming models objects policies techniques levers init_from captures longer
    ;;
3) variants models objects policies captures levers techniques init_from longer ;;
*)
    echo "error: the call is 1, 2 or 3, not $call." >&2
    exit 2
    ;;
esac
