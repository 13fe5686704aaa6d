#!/bin/sh
# What every launch script of this folder does: openclaw-rl up with a preset, steered by the environment and by flags.
#
#   _up.sh NAME PRESETS [FLAGS]     NAME is the launch script's, PRESETS are names with commas between them
#
# The run is kept in $CKPT_SAVE_DIR/run, without that in ~/.local/share/openclaw-rl/NAME; ./logs/training.log leads to
# its log. --rl-buffer-dir or --run-dir says otherwise, and then no log is linked here.
set -eu

folder=$(cd -P "$(dirname "$0")" && pwd)
name=$1 presets=$2
shift 2

if [ "${presets#qwen3-7b}" != "$presets" ] && [ -z "${MODEL_PATH:-}${BASE_MODEL_PATH:-}${HF_CKPT:-}" ]; then
    case " $* " in
    *" --model"*) ;;
    *)
        echo "error: which model is it? set MODEL_PATH to its folder or Hugging Face id, or give --model-path" >&2
        exit 2
        ;;
    esac
fi
case " $* " in
*" --rl-buffer-dir"* | *" --run-dir"*) ;;
*)
    run=${CKPT_SAVE_DIR:-${SAVE_CKPT:-${XDG_DATA_HOME:-$HOME/.local/share}/openclaw-rl/$name}}/run
    set -- --run-dir "$run" "$@"
    if [ -L logs/training.log ] || [ ! -e logs/training.log ]; then
        case $run in /*) ;; *) run=$PWD/$run ;; esac
        mkdir -p logs && ln -sfn "$run/logs/training.log" logs/training.log
    fi
    ;;
esac
exec "$folder/_openclaw-rl.sh" up --preset "$presets" "$@"
