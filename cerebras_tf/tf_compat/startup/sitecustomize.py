"""Runs when a Python starts that a launcher has started: provides the names of TensorFlow 2.2.

A sitecustomize of the user's runs, too. In a Python without cerebras_tf nothing else happens.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder or ".") != _HERE]
_users = PathFinder.find_spec("sitecustomize")
if _users is not None and _users.loader is not None:
    _users.loader.exec_module(importlib.util.module_from_spec(_users))
if importlib.util.find_spec("cerebras_tf") is not None:
    importlib.import_module("cerebras_tf.tf_compat.tensorflow_2_2").activate()
