# Shared by the launchers in this folder: where the checkout is, which Python runs it, and defaults
# that must be set before Python starts. Sourced by bash. set_up_environment.py builds environments.

SCRIPTS=$(cd -P "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(dirname "$SCRIPTS")
# Runs a module without the current folder in sys.path.
RUN_MODULE=$ROOT/cerebras_tf/run_module.py
VENV=${CEREBRAS_TF_VENV:-$ROOT/.venv}
case $VENV in /*) ;; *) VENV=$PWD/$VENV ;; esac
SUPPORTED="3.10 to 3.13"

# Defaults that only count when they are in the environment before Python starts. A value the
# user has set stays.
export_defaults() {
  export TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL-2}
}

# Does this interpreter start, is its version supported, and can it make an environment? The test
# is to run it: a shim on PATH may stand for a version that is not installed.
python_is_suitable() {
  "$1" -I -c '
import importlib.util, sys, venv
has = importlib.util.find_spec
suits = (3, 10) <= sys.version_info[:2] < (3, 14) and (has("ensurepip") or has("pip"))
sys.exit(0 if suits else 1)' >/dev/null 2>&1
}

# Prints the path of the newest suitable interpreter; fails when there is none. Of one version,
# those on PATH come first; pyenv and conda also have some that are not on PATH.
find_python() {
  local version path name conda=${CONDA_EXE:-/opt/conda/bin/conda}
  conda=${conda%/bin/conda}
  if [ -n "${CEREBRAS_TF_PYTHON-}" ]; then
    type -P "$CEREBRAS_TF_PYTHON" && python_is_suitable "$CEREBRAS_TF_PYTHON"
    return
  fi
  for version in 3.13 3.12 3.11 3.10 3; do
    name=python$version
    while IFS= read -r path; do
      if [ -x "$path" ] && python_is_suitable "$path"; then
        printf '%s\n' "$path"
        return 0
      fi
    done < <(
      type -aP "$name"
      printf '%s\n' "${PYENV_ROOT:-${HOME-}/.pyenv}/versions"/*/bin/"$name" \
        {"$conda","${HOME-}"/{mini,ana}conda3,"${HOME-}"/miniforge3}{,/envs/*}/bin/"$name"
    )
  done
  if command -v uv >/dev/null 2>&1; then
    echo "cerebras_tf: no Python $SUPPORTED was found; asking uv for Python 3.13" >&2
    uv python install --quiet 3.13 >&2 && uv python find 3.13 && return 0
  fi
  return 1
}

# Prints what a complete environment was made from: the checksum of lock file and setup.py, and the
# checkout it serves.
set_up_stamp() {
  printf '%s %s\n' "$(cat "$SCRIPTS/requirements.lock" "$ROOT/setup.py" | cksum)" "$ROOT"
}

# Returns when the environment at $VENV is complete, or ends with status 2 and the reason. Where it
# has to be set up, this process becomes the set-up, which then starts this script again with the
# arguments given here: so signals need no forwarding. A complete environment contains its stamp.
ensure_environment() {
  local stamp python
  stamp=$(set_up_stamp)
  if [ -x "$VENV/bin/python" ] && [ -r "$VENV/.complete" ] &&
    [ "$(<"$VENV/.complete")" = "$stamp" ]; then
    return 0
  fi
  if python_is_suitable "$VENV/bin/python"; then
    python=$VENV/bin/python
  else
    python=$(find_python) || no_python
  fi
  exec "$python" -I "$SCRIPTS/set_up_environment.py" "$ROOT" "$VENV" "$stamp" "$0" "$@"
}

# PyTorch's builds without CUDA, as in cerebras_tf/installing.py.
CPU_TORCH=https://download.pytorch.org/whl/cpu

# Installs PyTorch of torch.lock without CUDA, where it can be had. torch.lock has no hashes of
# these builds: pip compares the files with the hashes that their index lists. Argument: a log file.
install_cpu_torch() {
  if ! "$VENV/bin/python" -I -m pip install --no-deps --retries 1 --index-url "$CPU_TORCH" \
    --requirement <(sed -n 's/^\(torch==.*\) \\$/\1/p' "$SCRIPTS/torch.lock") >"$1" 2>&1; then
    echo "cerebras_tf: $CPU_TORCH has no PyTorch that can be installed here. The package index is" \
      "used; on Linux its PyTorch may require 7 GB of CUDA packages" >&2
    return 1
  fi
}

# Returns when the environment also holds the packages of NAME.lock, or fails with the reason.
# Arguments: NAME, and an example of the packages for the log.
install_extra() {
  local lock=$1.lock torch=() stamp log=$VENV/$1.log locked other
  locked=(--requirement "$SCRIPTS/$lock")
  [ "$1" != peers ] || torch=("$SCRIPTS/torch.lock")
  stamp=$(cat "$SCRIPTS/$lock" ${torch[@]+"${torch[@]}"} "$VENV/.complete" | cksum)
  if [ -r "$VENV/.$1" ] && [ "$(<"$VENV/.$1")" = "$stamp" ]; then
    return 0
  fi
  echo "cerebras_tf: installing the packages of scripts/$lock, $2" >&2
  : >"$log"
  if [ ${#torch[@]} -gt 0 ] && ! install_cpu_torch "$log"; then
    locked+=(--requirement "${torch[0]}")
  fi
  # The locks have all packages. A source is built with the environment's setuptools.
  if ! "$VENV/bin/python" -I -m pip install --require-hashes --no-deps --no-build-isolation \
    "${locked[@]}" >>"$log" 2>&1; then
    other=$(sed -n '/DO NOT MATCH THE HASHES/{n;s/^ *\([^ ]*\) .*/\1/p;}' "$log")
    if [ -n "$other" ]; then
      echo "cerebras_tf: every file must have a hash that its lock file in scripts lists." \
        "Received: another file of $other. None was installed. Check the package index (pip" \
        "config list), or whether somebody replaced the file; the whole log is $log." >&2
      return 1
    fi
    tail -n 6 "$log" >&2
    echo "cerebras_tf: the packages of scripts/$lock could not be installed. The whole log" \
      "is $log. If the lines above are about the network, check it; then run the same command" \
      "again." >&2
    return 1
  fi
  printf '%s\n' "$stamp" >"$VENV/.$1"
}

# Returns when the environment also holds the packages of peers.lock, or fails with the reason.
ensure_peers() {
  install_extra peers "PyTorch among them"
}

# Returns when the environment also holds the packages of mpi.lock, or fails with the reason.
ensure_mpi() {
  install_extra mpi "MPI among them"
}

# Returns when the environment also holds the packages of docs.lock, or fails with the reason.
ensure_docs() {
  install_extra docs "Sphinx among them"
}

# Replaces this process by the command on a number of wafers; 0 is the number that the command asks
# for. `original` has the arguments of csrun_wse, and `launch` options of the launcher. One wafer is
# a job where these are given, or where it is asked for and Slurm is installed.
run_on_wafers() {
  local given=$1 wafers asked logs
  shift
  unset CEREBRAS_TF_{RANK,WAFERS,JOB,CONSOLE,NUM_CSX} # of another job
  if [ "$given" = 1 ]; then
    export CEREBRAS_TF_NUM_CSX=1 # the launcher sets higher numbers
  fi
  if [ ${#launch[@]} -eq 0 ]; then
    case $given in
      0) asks_for_wafers "$@" || run_on_this_machine "$@" ;;
      1) has_slurm || run_on_this_machine "$@" ;;
    esac
  fi
  ensure_environment "${original[@]}"
  set_environment "$@"
  { read -rd '' wafers && read -rd '' asked && IFS= read -rd '' logs; } < <(
    exec_quietly "$VENV/bin/python" "$RUN_MODULE" modelzoo.common.train.wafers "$given" "$@"
  )
  if [ -z "${logs-}" ]; then # the error is printed
    exit 2
  fi
  if [ "$wafers" = 1 ] && [ ${#launch[@]} -eq 0 ] && { [ "$asked" = no ] || ! has_slurm; }; then
    exec "$@"
  fi
  [ "$wafers" = 1 ] || ensure_mpi || exit 2
  exec "$VENV/bin/python" "$RUN_MODULE" cerebras_tf.swarmx.launch \
    --wafers "$wafers" --logs "$logs" ${launch[@]+"${launch[@]}"} -- "$@"
}

# Does a Slurm answer here?
has_slurm() {
  command -v srun >/dev/null && { [ -z "${SLURM_CONF-}" ] || [ -e "$SLURM_CONF" ]; } &&
    timeout 15 sinfo --noheader >/dev/null 2>&1
}

# Does a command of the model zoo's runner ask for several wafers? Its --num_csx does, and with
# Slurm its params file does: without Slurm, one process computes their batches sequentially.
asks_for_wafers() {
  case $1 in python | python-ws) ;; *) return 1 ;; esac
  case " ${*:2} " in *" --num_csx "* | *" --num_csx="*) return 0 ;; esac
  has_slurm && case " ${*:2} " in *" -p "* | *" -p"*.y*ml* | *" --params"*) ;; *)
    return 1 ;;
  esac
}

# Prints a word with hyphens for the underscores in its option's name: both are in use.
hyphenated() {
  local name=${1%%=*}
  printf '%s' "${name//_/-}${1#"$name"}"
}

# Ends with the reason where one of some folders, separated by commas, does not exist.
have_folders() {
  local name names
  IFS=, read -ra names <<<"${1:-nothing}"
  for name in "${names[@]}"; do
    [ -d "$name" ] || {
      echo "$(basename "$0"): --mount-dirs: must be folders of this machine, with commas between" \
        "them. Received: $name. Create it, or leave it out." >&2
      exit 2
    }
  done
}

# Prints " Did you mean X?" for the known word that begins most like one; nothing where none shares
# more than four characters.
did_you_mean() {
  local word=$1 near="" most=4 known length
  for known in "${@:2}"; do
    length=${#known}
    while [ "${word:0:length}" != "${known:0:length}" ]; do length=$((length - 1)); done
    if [ "$length" -gt "$most" ]; then most=$length near=" Did you mean $known?"; fi
  done
  printf '%s' "$near"
}

# Ends with an option that is not known, those that are, and the one that begins most like it.
unknown_option() {
  echo "$(basename "$0"): unknown option $1.$(did_you_mean "${1%%=*}" "${@:2}") Known: ${*:2}." >&2
  exit 2
}

# Prints how a csrun program is used: its name, what it does, its own options, and examples.
print_csrun_usage() {
  cat <<END
usage: $1 [OPTIONS] COMMAND [ARGUMENTS]

$2

options:
  -h, --help            show this help and exit
$3

commands:
  python-ws -m MODE -p PARAMS.yaml [...]   run a model of the zoo in weight streaming mode
  python -m MODE -p PARAMS.yaml [...]      the same in pipelined mode
  python-ws FILE.py [ARGUMENTS]            run your own program
  python-pt FILE.py [ARGUMENTS]            run your own PyTorch program
  cerebras-tf COMMAND [ARGUMENTS]          configs, preparation of data, conversion, ...
  any other program                        run a program in the environment

modes: train, eval, train_and_eval, eval_all, predict; $1 python-ws -h shows more.

examples:
$4
END
}

# Prints how the environment's Python is used. The options are those of the model zoo's runner,
# whose parser needs no environment.
print_python_usage() {
  local python=$VENV/bin/python program=$1
  if ! python_is_suitable "$python"; then
    python=$(find_python) || no_python
  fi
  cat <<END
usage: $program FILE.py [ARGUMENTS]       run a program, as Python does; -c, -m MODULE and -i, too
       $program -m MODE -p YAML [...]     run a model of the zoo:

END
  PYTHONPATH=$ROOT "$python" "$RUN_MODULE" modelzoo.common.train.arguments "$program"
}

# Ends with the reason where no Python is found.
no_python() {
  local received=${CEREBRAS_TF_PYTHON-}
  if [ -n "$received" ]; then
    "$received" -I -c '' >/dev/null 2>&1 || received="$received, which does not start"
    echo "cerebras_tf: CEREBRAS_TF_PYTHON: must be a Python $SUPPORTED with the venv module." \
      "Received: $received. Unset it, and one is looked for." >&2
    exit 2
  fi
  echo "cerebras_tf: needs Python $SUPPORTED with the venv module, and none was found on" \
    "PATH, in pyenv or in conda. Install one (on Debian or Ubuntu: apt install python3-venv), or" \
    "install uv, which fetches one." >&2
  exit 2
}

# Replaces this process by the command, with the checkout's launchers (python, python-ws,
# python-pt, cerebras-tf) first on PATH and the environment's programs (tensorboard) after them.
run_on_this_machine() {
  # The launchers set up the environment themselves, unless they only show their usage.
  case $1 in python | python-ws | python-pt | cerebras-tf) ;; *) ensure_environment "$@" ;; esac
  set_environment "$@"
  exec "$@"
}

# Replaces this process by a program of ours, with SIGINT blocked: after Ctrl-C while it starts,
# Python shows a traceback. run_main of cerebras_tf/cli/exit_codes.py unblocks it. Not every env can
# block.
exec_quietly() {
  if env --block-signal=INT true 2>/dev/null; then
    exec env --block-signal=INT "$@"
  fi
  exec "$@"
}

# Sets what a command started by this launcher finds in its environment.
set_environment() {
  export_defaults
  export CEREBRAS_TF_LAUNCHER
  CEREBRAS_TF_LAUNCHER=$(basename "$0")
  export CEREBRAS_TF_VENV=$VENV PATH=$SCRIPTS:$VENV/bin:$PATH
  if ! type -P "$1" >/dev/null; then
    local near
    near=$(did_you_mean "$1" python-ws python-pt cerebras-tf)
    echo "$(basename "$0"): $1: command not found.$near $(basename "$0") -h shows the commands." >&2
    exit 127
  fi
}

# Is the word one that Python itself takes, alone, before a file name?
is_python_flag() {
  case $1 in
    -u | -B | -b | -bb | -d | -E | -i | -I | -O | -OO | -q | -s | -S | -v | -x) return 0 ;;
    *) return 1 ;;
  esac
}

# Are these the arguments of the model zoo's runner? They are when they start with an option that
# Python does not have, or with `-m` and one of the runner's modes or a name that is no module,
# which may be a misspelled mode: the runner has the better error.
is_runner_call() {
  case ${1-} in
    -m)
      case ${2-} in
        train | eval | train_and_eval | eval_all | predict) return 0 ;;
        *.* | "") return 1 ;;
      esac
      case " ${*:3} " in
        *" -p "*.y*ml* | *" --params"*) ! is_module "$2" && return 0 ;;
      esac
      ;;
    -mtrain | -meval | -mtrain_and_eval | -meval_all | -mpredict) return 0 ;;
    --version | --help | --help-* | --check-hash-based-pycs) ;;
    -p* | -o* | --[a-z]*) return 0 ;;
  esac
  return 1
}

# Does the environment's Python find a module of this name?
is_module() {
  "$VENV/bin/python" -c '
import sys
folders, sys.path = sys.path, sys.path[1:]
import importlib.util
sys.path = folders
sys.exit(importlib.util.find_spec(sys.argv[1]) is None)' "$1" >/dev/null 2>&1
}

# Replaces this process by the environment's Python. Arguments of the model zoo's runner start the
# runner; others mean what they mean to Python.
run_python() {
  local flags=() program
  program="${CEREBRAS_TF_LAUNCHER:+$CEREBRAS_TF_LAUNCHER }$(basename "$0")"
  case ${1-} in -h | --help) print_python_usage "$program"; exit ;; esac
  # No program, and none on standard input, which is a terminal or /dev/null.
  if [ $# -eq 0 ] && [ -c /dev/stdin ]; then
    print_python_usage "$program" >&2
    exit 2
  fi
  ensure_environment "$@"
  export_defaults
  while [ $# -gt 0 ]; do
    if is_python_flag "$1"; then
      flags+=("$1")
      shift
    elif [ "$1" = -W ] || [ "$1" = -X ]; then
      flags+=("$1" "${2-}")
      shift $(($# > 1 ? 2 : 1))
    else
      break
    fi
  done
  if is_runner_call "$@"; then
    export CEREBRAS_TF_PROGRAM=$program
    set -- "$RUN_MODULE" modelzoo.common.train.run "$@"
    exec_quietly "$VENV/bin/python" ${flags[@]+"${flags[@]}"} "$@"
  fi
  # Scripts find the names of TensorFlow 2.2.
  export PYTHONPATH=$ROOT/cerebras_tf/tf_compat/startup${PYTHONPATH:+:$PYTHONPATH}
  exec "$VENV/bin/python" ${flags[@]+"${flags[@]}"} "$@"
}
