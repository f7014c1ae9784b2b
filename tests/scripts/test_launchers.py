"""The launchers pass on arguments, modes, folders, signals and exit codes as a user expects."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from modelzoo.common.train.arguments import MODES, build_parser
from tests.messages import names
from tests.scripts.conftest import FAKE_PYTHON, write_program

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
RUN_MODULE = str(SCRIPTS.parent / "cerebras_tf" / "run_module.py")
RUNNER = [RUN_MODULE, "modelzoo.common.train.run"]
LAUNCH = f"{RUN_MODULE} cerebras_tf.swarmx.launch"
# A Python that says how many wafers a command asks for, and else what it was called with.
WAFERS_PYTHON = """#!/bin/bash
if [ "$2" != modelzoo.common.train.wafers ]; then echo "$*"
elif [ "$3" = 0 ]; then printf '1\\0no\\0/logs\\0'
else printf '%s\\0yes\\0/logs\\0' "$3"; fi
"""


@pytest.mark.parametrize(
    "given",
    [
        *(f"-m {mode} -p configs/tiny.yaml" for mode in MODES),
        "-p tiny.yaml -o out -m eval",
        "--params=tiny.yaml --mode eval",
    ],
)
def test_python_ws_with_options_of_the_runner_starts_the_runner(ready, given):
    assert ready.arguments("python-ws", *given.split()) == RUNNER + given.split()


def test_launch_line_of_the_article_is_passed_on_with_cs_ip_unset(ready):
    line = (
        "python-ws -m train -o gpt3_xl_pile -p configs/params_gpt3_xl_pile.yaml "
        "--cs_ip $CS_IP --max_steps 2000"
    )
    script = f'"{SCRIPTS}/csrun_wse" {line}'
    got = ready.arguments("/bin/bash", "-c", script)
    assert got == RUNNER + line.replace("$CS_IP ", "").split()[1:]


@pytest.mark.parametrize(
    "given",
    [
        ["train.py", "-m", "train", "-p", "x"],
        ["-c", "print(1)", "-m", "train"],
        ["-m", "json.tool", "-p"],
        ["-m", "training", "-p"],
        ["--version"],
        ["-", "an argument with spaces", "", "*"],
    ],
)
def test_python_ws_leaves_what_python_understands_to_python(ready, given):
    assert ready.arguments("python-ws", *given) == given


def test_python_ws_keeps_flags_of_python_in_front_of_the_runner(ready):
    got = ready.arguments("python-ws", "-u", "-W", "error", "-m", "train", "-p", "x")
    assert got == ["-u", "-W", "error", *RUNNER, "-m", "train", "-p", "x"]


def test_python_ws_is_weight_streaming_and_python_is_pipeline(ready):
    assert "mode: weight_streaming\n" in ready.run("csrun_wse", "python-ws", "x.py").stdout
    assert "mode: pipeline\n" in ready.run("csrun_wse", "python", "x.py").stdout
    assert "mode: pipeline\n" in ready.run("csrun_cpu", "python", "x.py").stdout


def test_python_started_by_a_weight_streaming_program_keeps_its_mode(ready):
    ran = ready.run("csrun_wse", "python", "x.py", CEREBRAS_EXECUTION_MODE="weight_streaming")
    assert "mode: weight_streaming\n" in ran.stdout


@pytest.mark.parametrize("name", ["csrun_wse", "csrun_cpu"])
def test_commands_stay_in_the_folder_of_the_user(ready, name):
    assert f"folder: {ready.cwd}\n" in ready.run(name, "python", "x.py").stdout


def test_log_level_of_tensorflow_has_a_default_that_the_user_can_override(ready):
    assert "log level: 2\n" in ready.run("python-ws", "x.py").stdout
    assert "log level: 0\n" in ready.run("python-ws", "x.py", TF_CPP_MIN_LOG_LEVEL="0").stdout


def test_launchers_work_through_symbolic_links(ready, tmp_path):
    link = tmp_path / "bin" / "launch"
    link.parent.mkdir()
    link.symlink_to(SCRIPTS / "csrun_wse")
    assert ready.arguments(str(link), "python-ws", "x.py") == ["x.py"]


@pytest.mark.parametrize("launcher", [["cerebras-tf"], ["csrun_wse", "cerebras-tf"]])
def test_cerebras_tf_is_the_program_of_the_environment(ready, launcher):
    write_program(ready.venv / "bin" / "cerebras-tf", FAKE_PYTHON)
    given = ["prepare", "gpt", "--input_dir", "two words"]
    assert ready.arguments(*launcher, *given) == given
    assert "log level: 2\n" in ready.run(*launcher).stdout


def test_files_modules_and_commands_really_run(real):
    (real.cwd / "sum.py").write_text(
        "import sys\nprint(sum(map(int, sys.argv[1:])))\n", encoding="utf-8"
    )
    assert real.run("csrun_wse", "python-ws", "sum.py", "1", "2").stdout == "3\n"
    assert real.run("csrun_wse", "python-ws", "-m", "sum", "3", "4").stdout == "7\n"
    program = "import sys; print('cerebras_tf.tf_compat.tensorflow_2_2' in sys.modules)"
    assert real.run("csrun_wse", "python-ws", "-c", program).stdout == "True\n"


@pytest.mark.parametrize("status", [0, 1, 2, 130, 143])
def test_exit_status_is_that_of_the_program(real, status):
    ran = real.run("csrun_wse", "python-ws", "-c", f"raise SystemExit({status})")
    assert ran.returncode == status


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_the_program_itself(real, sent):
    # Python's own process id is the one the launcher was started with, so there is nobody between.
    program = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))\n"
        "signal.signal(signal.SIGINT, lambda number, frame: sys.exit(128 + number))\n"
        "print(os.getpid(), flush=True)\n"
        "signal.pause()\n"
    )
    environment = {"CEREBRAS_TF_VENV": str(real.venv), "PATH": "/usr/bin:/bin"}
    command = [str(SCRIPTS / "csrun_wse"), "python-ws", "-c", program]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    process.send_signal(sent)
    assert process.wait(timeout=60) == 128 + sent
    process.stdout.close()


# Starts as Python does, but takes until the test has sent its signal; then it is Python.
SLOW_PYTHON = """#!/bin/bash
echo starting
read -r
exec "{python}" "$@"
"""


ENTRY = "import sys; from modelzoo.commands.main import main; sys.exit(main())"


@pytest.mark.parametrize(
    "command",
    [
        ["csrun_wse", "python-ws", "-m", "train", "-p", "none.yaml"],
        ["csrun_wse", "cerebras-tf", "info"],
        ["cerebras-tf", "info"],
    ],
    ids=" ".join,
)
def test_ctrl_c_while_python_itself_starts_ends_our_programs_without_a_word(launchers, command):
    slow = SLOW_PYTHON.format(python=sys.executable)
    launchers.complete(slow)
    entry = launchers.venv / "bin" / "cerebras-tf"
    entry.write_text(slow.replace('"$@"', f"-c '{ENTRY}' \"$@\""), encoding="utf-8")
    entry.chmod(0o755)
    environment = {
        **os.environ,
        "CEREBRAS_TF_VENV": str(launchers.venv),
        "PYTHONPATH": str(SCRIPTS.parent),
    }
    process = subprocess.Popen(
        [str(SCRIPTS / command[0]), *command[1:]],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "starting\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate("go on\n", timeout=60) == ("", "")
    assert process.returncode == 130


@pytest.mark.parametrize("name", ["csrun_wse", "csrun_cpu"])
def test_csrun_without_a_command_says_how_it_is_used(launchers, name):
    helps = [launchers.run(name, flag) for flag in ("-h", "--help")]
    assert [ran.returncode for ran in helps] == [0, 0]
    assert helps[0].stdout == helps[1].stdout
    for words in ([], ["--mount_dirs", "/"]):
        ran = launchers.run(name, *words)
        assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", helps[0].stdout)
    assert not launchers.venv.exists()  # told before anything is set up


@pytest.mark.parametrize("name", ["csrun_wse", "csrun_cpu"])
def test_help_of_csrun_has_every_option_the_modes_and_two_examples(launchers, name):
    text = launchers.run(name, "-h").stdout
    known = launchers.run(name, "--no-such-option").stderr.split("Known: ")[1].rstrip(".\n")
    assert all(f" {option}" in text for option in known.split())
    assert f"modes: {', '.join(MODES)};" in text
    assert text.split("examples:\n")[1].count(f"  scripts/{name} ") == 2
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("command", [["python-ws"], ["csrun_wse", "python-ws"], ["python"]])
def test_help_of_python_ws_is_the_runners_under_its_name(launchers, programs, command):
    (programs / "python3").symlink_to(sys.executable)
    for flag in ("-h", "--help"):
        ran = launchers.run(*command, flag, PATH=str(programs))
        assert (ran.returncode, ran.stderr) == (0, "")
    program = " ".join(command)
    assert ran.stdout.startswith(f"usage: {program} FILE.py [ARGUMENTS] ")
    assert build_parser(program).format_help() in ran.stdout
    assert not launchers.venv.exists()


@pytest.mark.parametrize("command", [["python-ws"], ["csrun_cpu", "python"]])
def test_python_ws_without_a_program_tells_how_it_is_used(launchers, programs, command):
    (programs / "python3").symlink_to(sys.executable)
    ran = launchers.run(*command, PATH=str(programs))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == launchers.run(*command, "-h", PATH=str(programs)).stdout
    assert not launchers.venv.exists()


def test_python_ws_reads_a_program_from_standard_input(real):
    for given in ((), ("-",)):
        command = [str(SCRIPTS / "python-ws"), *given]
        environment = {**os.environ, "CEREBRAS_TF_VENV": str(real.venv)}
        ran = subprocess.run(
            command, input="print(6 * 7)", capture_output=True, text=True, env=environment
        )
        assert (ran.returncode, ran.stdout) == (0, "42\n")


def test_the_runner_shows_the_name_it_was_launched_by(real):
    given = ["-m", "train", "-p", "none.yaml"]
    assert real.run("csrun_wse", "python-ws", *given).stderr.startswith("csrun_wse python-ws: none")
    assert real.run("python-ws", *given).stderr.startswith("python-ws: none.yaml: ")


@pytest.mark.parametrize(
    "command",
    [
        "python-ws -m train -p none.yaml",
        "python-ws -m trian -p none.yaml",
        "csrun_wse --num_csx 2 python-ws -m train -p none.yaml",
    ],
)
def test_no_other_module_of_the_same_name_runs_as_one_of_ours(real, command):
    for name in ("modelzoo/__init__", "yaml", "numpy", "types", "runpy"):
        (real.cwd / name).parent.mkdir(exist_ok=True)
        text = "raise SystemExit('module of the current folder')"
        (real.cwd / f"{name}.py").write_text(text, encoding="utf-8")
    zoo = real.cwd.parent / "zoo"
    zoo.mkdir()
    (zoo / "modelzoo").symlink_to(real.cwd / "modelzoo")
    paths = os.pathsep.join(filter(None, [str(zoo), os.environ.get("PYTHONPATH")]))
    ran = real.run(*command.split(), PYTHONPATH=paths)
    assert ran.returncode == 2 and "current folder" not in ran.stderr
    assert names(ran.stderr, "none.yaml" if "train" in command else "trian")


def test_a_misspelled_mode_is_told_by_the_runner(real):
    given = ["-m", "trian", "-p", "configs/params_gpt3_tiny.yaml"]
    ran = real.run("csrun_wse", "python-ws", *given)
    assert ran.returncode == 2
    assert "Received: 'trian'. Did you mean train?" in " ".join(ran.stderr.split())


def test_a_module_of_the_users_own_takes_params_files_too(real):
    (real.cwd / "training.py").write_text("import sys\nprint(sys.argv[1:])\n", encoding="utf-8")
    ran = real.run("python-ws", "-m", "training", "-p", "mine.yaml")
    assert ran.stdout == "['-p', 'mine.yaml']\n"


def test_csrun_wse_names_a_command_that_does_not_exist(ready):
    for name, near in (("no-such", ""), ("python-wss", " Did you mean python-ws?")):
        ran = ready.run("csrun_wse", name)
        assert ran.returncode == 127
        told = f"csrun_wse: {name}: command not found.{near} csrun_wse -h shows the commands.\n"
        assert ran.stderr == told


def test_csrun_wse_takes_the_options_of_a_cluster_for_one_node(ready):
    ready.complete(WAFERS_PYTHON)
    options = "--total_nodes=1 --tasks-per-node 1 --cpus-per-task 16 --single-task-nodes 0 --cyclic"
    words = [*options.split(), "--mount_dirs=/,/usr", "python", "x.py"]
    ran = ready.run("csrun_wse", *words, SLURM_CONF="/none")
    assert (ran.stderr, ran.stdout) == (
        "",
        f"{LAUNCH} --wafers 1 --logs /logs --nodes 1 --tasks-per-node 1 "
        "--cpus-per-task 16 -- python x.py\n",
    )


@pytest.mark.parametrize("option", ["--requeue", "--hang-timeout=9", "--cpus-per-task=1"])
def test_options_of_a_job_make_one_of_a_single_wafer(ready, option):
    ready.complete(WAFERS_PYTHON)
    ran = ready.run("csrun_wse", option, "python", "x.py", SLURM_CONF="/none")
    launch = f"{LAUNCH} --wafers 1 --logs /logs"
    assert ran.stdout == f"{launch} {option.replace('=', ' ')} -- python x.py\n"


def test_one_wafer_runs_here_without_slurm_and_else_in_it_where_it_is_asked_for(ready, programs):
    ready.complete(WAFERS_PYTHON)
    for options in ([], ["--num_csx", "1"], ["--single-task-nodes", "--cyclic"]):
        ran = ready.run("csrun_wse", *options, "python", "x.py", SLURM_CONF="/none")
        assert (ran.stdout, ran.stderr) == ("x.py\n", "")
    for name in ("srun", "sinfo"):
        write_program(programs / name, "#!/bin/bash\n")
    with_slurm = {"SLURM_CONF": "", "PATH": f"{programs}:{os.environ['PATH']}"}
    assert ready.run("csrun_wse", "python", "x.py", **with_slurm).stdout == "x.py\n"
    ran = ready.run("csrun_wse", "--num_csx", "1", "python", "x.py", **with_slurm)
    assert ran.stdout == f"{LAUNCH} --wafers 1 --logs /logs -- python x.py\n"


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        (["--mount-dirs=/,/no such"], ["--mount-dirs", "/no such"]),
        (["--mount-dirs", "/no such,/"], ["--mount-dirs", "/no such"]),
        (["--total-nodes=3"], ["--total-nodes", "Slurm", "3"]),
        (["--num_csx=0"], ["--num_csx", "at least 1", "0"]),
        (["--num_csx", "two"], ["--num_csx", "at least 1", "two"]),
        (["--cpus-per-task="], ["--cpus-per-task", "at least 1", "nothing"]),
        (["--num_csx", "9" * 20], ["--num_csx", "999999", "9" * 20]),
        (["--num_csx", "2", "--tasks-per-node=4"], ["--num_csx", "4", "2"]),
        (["--total-node=1"], ["--total-node=1", "Did you mean --total-nodes?"]),
    ],
)
def test_csrun_wse_refuses_options(ready, options, facts):
    ran = ready.run("csrun_wse", *options, "python", "x.py", SLURM_CONF="/none")
    assert ran.returncode == 2 and ran.stderr.startswith("csrun_wse: ")
    assert names(ran.stderr, *facts)


def test_csrun_cpu_refuses_options(ready):
    for option in ("--mount-dirs=/no such", "--total-node=1"):
        ran = ready.run("csrun_cpu", "--alloc-node", "True", option, "python", "x.py")
        assert ran.returncode == 2 and names(ran.stderr, "csrun_cpu: ", option.partition("=")[0])
        assert "Did you mean" not in ran.stderr


def test_csrun_wse_starts_a_process_for_each_wafer(ready):
    ready.complete(WAFERS_PYTHON)
    options = ["--num_csx", "2", "--cpus-per-task=3", "--requeue"]
    ran = ready.run("csrun_wse", *options, "python-ws", "x.py", "two words", SLURM_CONF="/none")
    assert ran.stdout.splitlines()[-1] == (
        f"{LAUNCH} --wafers 2 --logs /logs --cpus-per-task 3 --requeue -- python-ws x.py two words"
    )
    assert "installing the packages of scripts/mpi.lock" in ran.stderr
    again = ready.run("csrun_wse", *options, "python-ws", "x.py", SLURM_CONF="/none")
    assert "mpi.lock" not in again.stderr


@pytest.mark.parametrize("has_torch", [True, False])
def test_python_pt_installs_pytorch_where_it_is_missing(launchers, has_torch):
    given = ["run.py", "--mode", "train", "--params", "params.yaml"]
    missing = f"""
case "$*" in
  *find_spec*) exit {int(not has_torch)} ;;
  *pip*) echo "installed: $*" >&2 ;;
esac
"""
    launchers.complete(FAKE_PYTHON.replace("#!/bin/bash\n", f"#!/bin/bash{missing}"))
    ran = launchers.run("csrun_wse", "python-pt", *given)
    assert ran.returncode == 0, ran.stderr
    assert [line for line in ran.stdout.splitlines() if line.startswith("argument: ")] == [
        f"argument: {word}" for word in given
    ]
    assert "mode: weight_streaming\n" in ran.stdout
    assert ("peers.lock" in ran.stderr) is not has_torch
