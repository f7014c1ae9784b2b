"""The distribution: its packages, requirements and files.

Requirements are ranges of versions. Exact versions of everything, transitive ones included, and
hashes are in the lock files of scripts/; scripts/update_lock.py writes them from this file.
The launchers in scripts/ set up a checkout.
"""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).resolve().parent
ON_X86_LINUX = "platform_system == 'Linux' and platform_machine == 'x86_64'"
ELSEWHERE = "(platform_system != 'Linux' or platform_machine != 'x86_64')"
OLDER, NEWER = "python_version < '3.12'", "python_version >= '3.12'"

# What compiles and runs programs.
CORE = [
    "numpy>=1.26",
    "numba>=0.62",
    # Matrix products; without it NumPy's BLAS serves, slower.
    f"scipy-openblas32>=0.3.29; {ON_X86_LINUX}",
    "PyYAML>=6.0",
    "tqdm>=4.62",
    "protobuf>=4.22,<8",
]
# TensorFlow 2.15 is the last release with tf.estimator, and has no wheels for Python 3.12. On later
# releases cerebras_tf/tf_compat provides tf.estimator by the package tensorflow-estimator. tf_keras
# requires the distribution tensorflow, not tensorflow-cpu.
TENSORFLOW = [
    f"tensorflow-cpu>=2.15.1,<2.16; {OLDER} and {ON_X86_LINUX}",
    f"tensorflow>=2.15.1,<2.16; {OLDER} and {ELSEWHERE}",
    f"tensorflow>=2.16,<2.22; {NEWER}",
    f"tf_keras>=2.16,<2.22; {NEWER}",
    f"tensorflow-estimator>=2.15,<2.16; {NEWER}",
    f"tensorboard>=2.16; {NEWER}",
    # TensorBoard imports pkg_resources, which setuptools 82 no longer has.
    "setuptools<82",
]
# For data preparation and scores of translations in the model zoo.
DATA = ["tokenizers>=0.20", "zstandard>=0.22", "ftfy>=6.1", "sacrebleu>=2.4"]
# The wafer on another computer.
ADDRESS = ["grpcio>=1.60", "cryptography>=42"]
TEST = [
    *TENSORFLOW,
    *DATA,
    *ADDRESS,
    "pytest>=9",
    "pytest-xdist>=3.6",
    "mypy>=2",
    "ruff>=0.17",
    "types-PyYAML",
]
# Capture of PyTorch models; tested with 2.8, 2.13 and 2.14.
TORCH = ["torch>=2.8"]
# Independent implementations of models and scores, for tests that compare with them. An extra
# cannot name PyTorch's index of builds without CUDA: see cerebras_tf/installing.py. PyTorch's
# samples of operations need expecttest.
PEERS = [
    *("torch>=2.8", "expecttest>=0.3", "transformers>=5", "peft>=0.18", "rouge-score>=0.1.2"),
    *("accelerate>=1.1", "lightning>=2.5"),
]
# EleutherAI's harness of evaluations; its newer pyarrow wants NumPy 2.
LM_EVAL = ["lm-eval>=0.4.13,<0.5", "pyarrow<26"]
# Input files of data preparation.
PARQUET = ["pyarrow>=14"]
# Logs to Weights & Biases, of the option loggers.
WANDB = ["wandb>=0.18"]
MPI = ["mpi4py>=4.1", "mpich>=5"]
DOCS = ["sphinx>=8", "myst-parser>=4", "furo>=2024.8.6"]

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
# The params files lie at the top of the checkout and are installed inside the model zoo.
CONFIGS = "modelzoo.configs"
# So is the data of the predicted systems.
SYSTEMS = "cerebras_tf.wafer.systems"


def dropin_packages() -> list[str]:
    """Returns the names of all packages that are installed from cerebras_tf/dropin."""
    found = []
    for name, folder in DROPIN_FOLDERS.items():
        inner = find_packages(folder, exclude=["roots", "roots.*"])
        found += [name, *(f"{name}.{package}" for package in inner)]
    return found


def version() -> str:
    """Returns the version, which is in cerebras_tf/__init__.py."""
    text = (ROOT / "cerebras_tf" / "__init__.py").read_text(encoding="utf-8")
    (found,) = re.findall(r'^__version__ = "(.+)"$', text, flags=re.MULTILINE)
    return str(found)


setup(
    name="cerebras_tf",
    version=version(),
    description="Train TensorFlow estimators by layer-wise weight streaming on an emulated wafer",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICE"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    keywords="tensorflow estimator wafer weight-streaming training emulator",
    python_requires=">=3.10",
    packages=[
        *find_packages(
            include=["cerebras_tf", "cerebras_tf.*", "modelzoo", "modelzoo.*"],
            exclude=["cerebras_tf.dropin", "cerebras_tf.dropin.*"],
        ),
        *dropin_packages(),
        CONFIGS,
        SYSTEMS,
    ],
    package_dir={**DROPIN_FOLDERS, CONFIGS: "configs", SYSTEMS: "configs/wafer"},
    package_data={
        CONFIGS: ["*.yaml"],
        SYSTEMS: ["*.yaml"],
        "modelzoo.common.data": ["shakespeare/*"],
    },
    install_requires=CORE,
    extras_require={
        "tensorflow": TENSORFLOW,
        "data": DATA,
        "test": TEST,
        "torch": TORCH,
        "peers": PEERS,
        "lm-eval": LM_EVAL,
        "parquet": PARQUET,
        "wandb": WANDB,
        "mpi": MPI,
        "address": ADDRESS,
        "docs": DOCS,
    },
    entry_points={
        "console_scripts": ["cerebras-tf = cerebras_tf.run_module:program"],
        "torch_dynamo_backends": ["cerebras = cerebras_tf.torch_compile:compile_graph"],
    },
)
