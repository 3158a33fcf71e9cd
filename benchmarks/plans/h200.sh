#!/usr/bin/env bash
# Three calls of at most nine minutes on one GPU. What they take, and which scenes each needs: README.md beside this.
#
#   bash benchmarks/plans/h200.sh {1|2|3} DATA OUT [ROWS...]
#
# DATA: the folder of scenes. OUT: the folder that rows are appended to. ROWS: rows of earlier calls, which are not
# measured again (benchmarks/results/h200-variants.jsonl has many). Environment: LIMIT (seconds, 530), PYTHON, COMMIT (to
# record), MORE (further options of bench_variants.py, such as --rehearse).
set -u
call=$1 data=$2 out=$3
shift 3
limit=${LIMIT:-530} python=${PYTHON:-python}
cd "$(dirname "$0")/../.." || exit 1
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$out"

# variants PLAN...: the plans in order, for the seconds that are left. What fails ends nothing else.
variants() {
    local plans=() done=()
    for plan in "$@"; do plans+=("benchmarks/plans/$plan.json"); done
    for file in "${rows[@]}"; do done+=(--done "$file"); done
    # shellcheck disable=SC2086
    "$python" benchmarks/bench_variants.py --plan "${plans[@]}" --data "$data" --within $((limit - SECONDS)) \
        ${done[@]+"${done[@]}"} ${COMMIT:+--commit "$COMMIT"} --out "$out/variants.jsonl" ${MORE:-}
}

# poses: lego with right, wrong and refined poses.
poses() {
    "$python" benchmarks/bench_poses.py "$data/lego" --device cuda --seconds 25 --views 6 --perturb-degrees 1 \
        --perturb-distance 0.01 --out "$out/poses.jsonl"
}

rows=("$@")
case $call in
1) variants unbounded captures longer ;;
2)
    poses
    variants models objects init_from captures levers techniques policies longer
    ;;
3) variants models objects captures policies levers techniques init_from longer ;;
*)
    echo "error: the call is 1, 2 or 3, not $call." >&2
    exit 2
    ;;
esac
