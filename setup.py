"""Says what the distribution contains, needs and installs.

Exact versions of everything, transitive ones included, are in scripts/requirements.lock and
scripts/peers.lock, which scripts/update_lock.py writes from this file. This file does not set up a
checkout for use: the launchers in scripts/ do.
"""

from __future__ import annotations

from setuptools import find_packages, setup

ON_X86_LINUX = "platform_system == 'Linux' and platform_machine == 'x86_64'"
ELSEWHERE = "platform_system != 'Linux' or platform_machine != 'x86_64'"

CORE = [
    f"tensorflow-cpu==2.15.1; {ON_X86_LINUX}",
    f"tensorflow==2.15.1; {ELSEWHERE}",
    "numpy==1.26.4",
    "numba==0.68.1",
    # Matrix products; without it NumPy's BLAS serves, slower.
    f"scipy-openblas32==0.3.34.481.3; {ON_X86_LINUX}",
    "PyYAML==6.0.3",
    "absl-py==2.5.1",
    "tqdm==4.70.1",
    "protobuf==4.25.9",
    # TensorBoard 2.15 imports pkg_resources, which setuptools 82 no longer has.
    "setuptools==80.9.0",
]
# What the model zoo's preparation of data and its scores of translations need.
DATA = [
    "tokenizers==0.23.3",
    "zstandard==0.25.0",
    "ftfy==6.3.1",
    "sacrebleu==2.6.0",
]
TEST = [
    *DATA,
    "pytest==9.2.0",
    "pytest-xdist==3.8.0",
    "mypy==2.4.1",
    "ruff==0.17.5",
    "types-PyYAML",
]
# Independent implementations of models and scores: only tests that compare with them need them.
PEERS = [
    "torch==2.13.0",
    "transformers==5.23.0; python_version >= '3.11'",
    "transformers==5.20.2; python_version == '3.10'",
    "rouge-score==0.1.2",
]
# EleutherAI's harness of evaluations; its newer pyarrow wants NumPy 2.
LM_EVAL = ["lm-eval==0.4.13", "pyarrow==25.0.0"]
MPI = ["mpi4py==4.1.2", "mpich==5.0.2"]

# The import names of the original software live in cerebras_tf/dropin. That folder is installed as
# the package `cerebras`, and each folder in its `roots` under its own name.
DROPIN = "cerebras_tf/dropin"
DROPIN_FOLDERS = {"cerebras": DROPIN}
DROPIN_FOLDERS.update(
    {
        package: f"{DROPIN}/roots/{package}"
        for package in find_packages(f"{DROPIN}/roots")
        if "." not in package
    }
)


def dropin_packages() -> list[str]:
    """Returns the names of all packages that are installed from cerebras_tf/dropin."""
    found = []
    for name, folder in DROPIN_FOLDERS.items():
        inner = find_packages(folder, exclude=["roots", "roots.*"])
        found += [name, *(f"{name}.{package}" for package in inner)]
    return found


setup(
    name="cerebras_tf",
    version="0.1.0",
    description="Train TensorFlow estimators by layer-wise weight streaming on an emulated wafer",
    python_requires=">=3.10,<3.12",
    packages=[
        *find_packages(
            include=["cerebras_tf", "cerebras_tf.*", "modelzoo", "modelzoo.*"],
            exclude=["cerebras_tf.dropin", "cerebras_tf.dropin.*"],
        ),
        *dropin_packages(),
    ],
    package_dir=DROPIN_FOLDERS,
    package_data={"modelzoo.common.input": ["shakespeare/*"]},
    install_requires=CORE,
    extras_require={"data": DATA, "test": TEST, "peers": PEERS, "lm-eval": LM_EVAL, "mpi": MPI},
    entry_points={"console_scripts": ["cerebras-tf = cerebras_tf.cli.main:main"]},
)
