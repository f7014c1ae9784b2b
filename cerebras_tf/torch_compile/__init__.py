"""The backend "cerebras" of torch.compile. Importing this package registers it."""

from cerebras_tf.torch_compile.backend import compile_graph as compile_graph
from cerebras_tf.torch_compile.backend import register

register()
