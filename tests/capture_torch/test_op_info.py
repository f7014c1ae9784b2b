"""The rules on PyTorch's own samples of each op: right, or refused; forward and gradient."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")
pytest.importorskip("expecttest", reason="torch's samples import it")

from torch.testing._internal.common_methods_invocations import op_db

from cerebras_tf.capture_torch import decompositions, internals, registry
from cerebras_tf.capture_torch import export as export  # registers the rules
from cerebras_tf.capture_torch.lowering import DTYPES, Lowering, array_of
from cerebras_tf.errors import CerebrasError
from cerebras_tf.ir import Graph, StepGraph, TensorType
from cerebras_tf.passes.differentiate import differentiate
from tests.graphs import run_plain

SAMPLES = 5  # of each op
# Where torch has no gradient of an operand of the sample or no number, and plain kernels no shape.
INCOMPARABLE = (
    "not differentiable",
    "not implemented",
    "ZeroTensor",
    "of size 0",
    "data-dependent",
)
assert export  # its import registers the rules
KNOWN = {*registry.RULES, *decompositions.DECOMPOSITIONS, *decompositions.OF_PYTORCH}
NAMES = {name.split(".")[1] for name in KNOWN} | {"nn.functional.cross_entropy", "einsum"}
# Random, or without a deterministic result to compare with.
LEFT_OUT = ("dropout", "empty", "embedding_bag", "item", "_native_batch_norm_legit")
OPS = [
    info
    for info in op_db
    if {info.aten_name, info.name, info.name.rpartition(".")[2]} & NAMES
    and torch.float32 in info.dtypes
    and not any(name in info.name for name in LEFT_OUT)
]


class Call(torch.nn.Module):
    """A sample of an op as a module: a function of its tensors."""

    def __init__(self, info, sample):
        super().__init__()
        self.info = info
        self.tensors = []
        self.args = [self.placed(item) for item in (sample.input, *sample.args)]
        self.keys = {key: self.placed(item) for key, item in sample.kwargs.items()}

    def placed(self, item):
        """The item as a function of the tensors."""
        if isinstance(item, torch.Tensor):
            self.tensors.append(item.detach())
            index = len(self.tensors) - 1
            return lambda tensors: tensors[index]
        if type(item) in (list, tuple):
            parts = [self.placed(part) for part in item]
            return lambda tensors: type(item)(part(tensors) for part in parts)
        return lambda tensors: item

    def forward(self, tensors):
        keys = {key: item(tensors) for key, item in self.keys.items()}
        found = self.info.op(*(item(tensors) for item in self.args), **keys)
        return list(found) if isinstance(found, (list, tuple)) else [found]


def lowered(call):
    """The graph of a call, with inputs for its tensors and the outputs' values."""
    program = torch.export.export(call, (call.tensors,), strict=False)
    program = program.run_decompositions(dict(internals.decompositions(frozenset(registry.RULES))))
    step = StepGraph(Graph("sample"))
    low = Lowering(step, 0, {})
    roles = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    for node in [node for node in program.graph.nodes if node.op == "placeholder"]:
        if roles[node.name].kind.name == "USER_INPUT":
            tensor = node.meta["val"]
            kind = TensorType(DTYPES[tensor.dtype], tuple(tensor.shape))
            low.values[node] = step.graph.add_input(node.name, kind)
        elif roles[node.name].target is not None:
            constant = program.constants[roles[node.name].target]
            low.values[node] = low.b.constant(array_of(constant), DTYPES[constant.dtype])
    return low, low.run(program.graph_module)


def check(call):
    """Compares forward and gradients; raises CerebrasError where the sample is refused."""
    low, outputs = lowered(call)
    if low.step.features:
        return  # it draws random numbers
    graph = low.step.graph
    inputs = list(graph.inputs)
    tensors = [t.clone().requires_grad_(t.is_floating_point()) for t in call.tensors]
    expected = call(tensors)
    ys = [pair for pair in zip(outputs, expected) if pair[1].requires_grad]
    xs = [pair for pair in zip(inputs, tensors) if pair[1].requires_grad]
    graph.outputs, wanted = list(outputs), [item.detach().numpy() for item in expected]
    is_defined = all(np.isfinite(array).all() for array in wanted)
    if ys and xs and is_defined:
        dys = [torch.randn(y.shape, generator=torch.Generator().manual_seed(0)) for _, y in ys]
        wanted += [
            gradient.numpy()
            for gradient in torch.autograd.grad(
                [y for _, y in ys],
                [x for _, x in xs],
                dys,
                allow_unused=True,
                materialize_grads=True,
            )
        ]
        operands = [*(y for y, _ in ys), *map(low.b.constant, dys), *(x for x, _ in xs)]
        attrs = {"ys": len(ys), "dys": (True,) * len(ys), "xs": len(xs)}
        graph.outputs += low.b.multi("gradient", *operands, **attrs)
        differentiate(graph)
    found = run_plain(graph, [array_of(tensor) for tensor in call.tensors])
    for array, want in zip(found, wanted):
        assert array.shape == want.shape and array.dtype == want.dtype
        np.testing.assert_allclose(array, want, rtol=1e-4, atol=1e-4)


def outcomes(info):
    """For samples of an op, whether they are right; others are refused."""
    found = []
    samples = list(info.sample_inputs("cpu", torch.float32, requires_grad=False))
    for sample in samples[:: max(1, len(samples) // SAMPLES)]:
        call = Call(info, sample)
        try:
            check(call)
            found.append(True)
        except CerebrasError:
            found.append(False)
        except (RuntimeError, ValueError) as error:
            if not any(reason in str(error) for reason in INCOMPARABLE):
                raise
    return found


@pytest.mark.slow
@pytest.mark.parametrize("info", OPS, ids=lambda info: f"{info.name} {info.variant_test_name}")
def test_samples_of_an_op_are_right_or_refused(info):
    outcomes(info)
