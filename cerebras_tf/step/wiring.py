"""Wires a wafer step into the session's graph.

The step is one node; values of the wafer that the session reads come from small nodes after it,
and operations that read them are re-routed. The model's own operations stay in place: nothing
fetches them any more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Optional

import numpy as np
import tensorflow as tf

from cerebras_tf.capture.functions import branch_of, is_check
from cerebras_tf.capture.lowerable import listed
from cerebras_tf.capture.order import all_before
from cerebras_tf.capture.placement import Placement
from cerebras_tf.errors import CerebrasError
from cerebras_tf.step.tensorflow_step import TensorFlowStep

_SCOPE = "wafer"
# Represents the training op among the needs of a fetch; no tensor has this name.
TRAINS = ""


class Wiring:
    """The step node of one graph, and the nodes that bring its values into the session.

    Attributes:
        train_op: makes a training step and updates the global step; None outside training.
        fed_operations: operations that compute the tensors fed to a step.
        token: int64 scalar, the output of the step node: the global step after the step.
    """

    def __init__(
        self,
        step: TensorFlowStep,
        placement: Placement,
        fed: Iterable[Any],
        global_step: Any,
        global_step_read: Any,
        checks: Iterable[Any],
        training: bool,
        metrics: Iterable[Any] = (),
    ) -> None:
        """Adds the step node.

        Args:
            fed: tensors fed to it, in order.
            global_step_read: a tensor with the global step before the step.
            checks: operations of the session that must run with the step (checks, prints).
            training: whether the step updates the global step.
            metrics: operations of the session that accumulate metrics.
        """
        self.step = step
        self.placement = placement
        fed = list(fed)
        self.fed_operations = {tensor.op for tensor in fed}
        self._global_step = global_step
        self._metrics = list(metrics)
        self._entries: dict[str, Any] = {}
        self._names: dict[Any, str] = {}  # by the wafer tensor of a node
        self._stand_ins: dict[Any, Any] = {}
        self._needs: dict[Any, frozenset[str]] = {}
        before = [self._join_branches(op, op) for op in checks]
        if placement.between:
            self._add_parts(global_step_read, fed)
        with tf.name_scope(_SCOPE), tf.control_dependencies(before):
            self.token = tf.numpy_function(
                self._run, [global_step_read, *fed], tf.int64, name="step"
            )
            self.token.set_shape([])
        self._after_step = [self._join_branches(op, op) for op in placement.after_step]
        self._after_step += [
            twin for op in placement.with_checks for twin in self._copy_with_checks(op)
        ]
        self.train_op: Optional[Any] = None
        if training:
            with tf.name_scope(_SCOPE), tf.control_dependencies(self._after_step):
                # The increment is computed on the wafer: a skipped step may skip it.
                count = tf.cast(self.token, global_step.dtype.base_dtype)
                self.train_op = tf.compat.v1.assign(global_step, count, name="train_op").op

    def _add_parts(self, global_step_read: Any, fed: list[Any]) -> None:
        """Adds the nodes of the parts of a step before what the session runs within it."""
        between = self.placement.between
        for part in sorted(set(between.values())):
            readers = [
                (op, index, tensor)
                for op, number in between.items()
                for index, tensor in enumerate(op.inputs)
                if number == part and self.placement.on_wafer(tensor.op)
            ]
            wanted = {tensor.name: tensor for _, _, tensor in readers}
            given = [tensor for tensor in fed if between.get(tensor.op, -1) < part]
            nodes = self._part(global_step_read, given, wanted)
            for op, index, tensor in readers:
                # Private API of TensorFlow: there is no public way to change an input.
                op._update_input(index, nodes[tensor.name])
        ops = [op for op in between if not self.placement.has_form(op)]
        tf.compat.v1.logging.info(
            "on the host within each step: %s. The step has %d parts; what the host reads is "
            "computed again in later ones",
            ", ".join(listed(ops)),
            len(set(between.values())) + 1,
        )

    def _part(self, global_step_read: Any, given: list[Any], wanted: dict[str, Any]) -> Any:
        """Session tensors with values of the wafer that a part of a step computes, by name.

        Args:
            given: the fed tensors that it knows.
        """
        self.step.tensors.update(wanted)
        names, types = [t.name for t in given], [t.dtype for t in wanted.values()]

        def run(global_step: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
            features = dict(zip(names, arrays))
            try:
                found = self.step.run_before(int(global_step), features, list(wanted))
            except CerebrasError as error:
                self.step.error = error
                raise
            return [np.asarray(x, dtype.as_numpy_dtype) for x, dtype in zip(found, types)]

        with tf.name_scope(_SCOPE), tf.control_dependencies(None):
            nodes = tf.numpy_function(run, [global_step_read, *given], types, name="part")
        for node, tensor in zip(nodes, wanted.values()):
            node.set_shape(tensor.shape)
        return dict(zip(wanted, nodes))

    def _run(self, global_step: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
        try:
            return np.asarray(self.step.run_arrays(int(global_step), arrays), np.int64)
        except CerebrasError as error:
            self.step.error = error
            raise

    def entry(self, tensor: Any) -> Any:
        """A session tensor with the value of a wafer tensor after the step."""
        name = tensor.name
        if name not in self._entries:
            self.step.tensors[name] = tensor
            with tf.name_scope(_SCOPE), tf.control_dependencies(None):
                node = tf.numpy_function(
                    lambda token: self._fetch(name, tensor.dtype),
                    [self.token],
                    tensor.dtype,
                    name="value",
                )
                node.set_shape(tensor.shape)
                self._names[node.op] = name
                self._entries[name] = self._in_branch_of(tensor.op, node)
        return self._entries[name]

    def _in_branch_of(self, op: Any, node: Any) -> Any:
        """A tensor that the session computes only if it takes the branch of an operation.

        On the wafer both branches of a version 1 conditional run.
        """
        branch = branch_of(op)
        if branch is None:
            return node
        predicate, side = self._in_session(branch[0]), branch[1]
        with tf.name_scope(_SCOPE), tf.control_dependencies(None):
            return tf.identity(tf.raw_ops.Switch(data=node, pred=predicate)[side], name="taken")

    def _in_place_of(self, op: Any) -> Any:
        """The operation of the session to wait for instead of one on the wafer."""
        if op not in self._stand_ins:
            self._stand_ins[op] = self._in_branch_of(op, self.token).op
        return self._stand_ins[op]

    def _join_branches(self, op: Any, place: Any) -> Any:
        """An operation to wait for, even if a branch is not taken.

        Args:
            place: an operation in the same branch, if any.
        """
        branch = branch_of(place)
        if branch is None:
            return op
        predicate, side = self._in_session(branch[0]), branch[1]
        with tf.name_scope(_SCOPE), tf.control_dependencies(None):
            sides = tf.raw_ops.Switch(data=predicate, pred=predicate)
            with tf.control_dependencies([op]):
                done = tf.identity(sides[side])
            either = tf.raw_ops.Merge(inputs=[done, sides[1 - side]])
        return self._join_branches(either.output.op, branch[0].op)

    def _copy_with_checks(self, op: Any) -> list[Any]:
        """A copy of a conditional or call that the session runs for the checks inside."""
        if any(tensor.dtype == tf.resource for tensor in op.inputs):
            tf.compat.v1.logging.warning(
                "assertions in '%s' do not run, because it reads variables that are on the wafer",
                op.name,
            )
            return []
        graph, inputs = op.graph, [self._in_session(tensor) for tensor in op.inputs]
        attributes = dict(op.node_def.attr)
        attributes.pop("_lower_using_switch_merge", None)  # would drop checks that nobody reads
        with tf.name_scope(_SCOPE), tf.control_dependencies(None):
            # Private API of TensorFlow: there is no public way to copy an operation with its
            # attributes.
            return [
                graph._create_op_internal(
                    op.type,
                    inputs,
                    [tensor.dtype for tensor in op.outputs],
                    name="checks",
                    attrs=attributes,
                )
            ]

    def _in_session(self, tensor: Any) -> Any:
        """The session's tensor with the value of a tensor."""
        return self.entry(tensor) if self.placement.on_wafer(tensor.op) else tensor

    def checked(self, tensor: Any) -> Any:
        """The tensor, whose reading fails if a check after the step fails."""
        with tf.name_scope(_SCOPE), tf.control_dependencies(self._after_step):
            return tf.identity(tensor, name="checked")

    def _fetch(self, name: str, dtype: Any) -> np.ndarray:
        return np.asarray(self.step.result(name), dtype.as_numpy_dtype)

    def reroute(self) -> None:
        """Re-routes all operations of the session that read wafer values or wait for a step.

        Operations that assign variables between steps, as in hooks, are not changed: the store
        serves them.
        """
        self.placement.update()
        awaiting = self.placement.needing_step([self.token.op])
        alone = self.placement.separate_assignments()
        for op, index, tensor in self.placement.host_readers():
            if op.type == "SaveV2" or tensor.op in alone:  # a user's Saver is served likewise
                continue
            # Private API of TensorFlow: there is no public way to change an operation's input.
            op._update_input(index, self.entry(tensor))
        before = self._before_step(awaiting)
        for op in self.placement.graph.get_operations():
            if self.placement.on_wafer(op) or self.placement.is_backward(op):
                continue
            given = op.control_inputs
            if op in before:  # operations that the step waits for cannot wait for it
                kept = [other for other in given if other not in awaiting]
            else:
                kept = [o for o in given if o in alone or not self.placement.is_replaced(o)]
            if len(kept) != len(given):
                others = [] if op in before else [other for other in given if other not in kept]
                after = dict.fromkeys(map(self._in_place_of, others))
                self.placement.replace_control_inputs(op, [*kept, *after])
        # At the end of the data the step fails, and metrics must not be updated again.
        for op in self.placement.session_assignments(self._metrics):
            if op not in before and op not in awaiting:
                self.placement.replace_control_inputs(op, [*op.control_inputs, self.token.op])
        self._update_after_reads()

    def _update_after_reads(self) -> None:
        """A fetch of the global step together with the training op returns the step before it.

        This is also so on the host, where the update waits for the whole step and the read does
        not.
        """
        if self.train_op is None:
            return
        readers = self._global_step.handle.consumers()
        reads = [op for op in readers if op.type == "ReadVariableOp" and not op.control_inputs]
        before = set(self.train_op.control_inputs)
        # Private API of TensorFlow: there is no public way to add control inputs.
        self.train_op._add_control_inputs([op for op in reads if op not in before])

    def ignored(self, roots: Collection[Any], fed: Collection[Any]) -> list[Any]:
        """Fed tensors that a step computes itself.

        Args:
            roots: operations whose values a step computes.
        """
        place, given = self.placement, {*self.token.op.inputs, *self.step.added}
        computed = set(
            all_before(
                roots, place.control_inputs, lambda op: is_check(op) or place.is_in_session(op)
            )
        )
        return [
            tensor
            for tensor in fed
            if tensor not in given
            and (tensor.op in roots or not computed.isdisjoint(tensor.consumers()))
        ]

    def takes_batch(
        self, fetches: Collection[Any], roots: Iterable[Any], fed: Collection[Any]
    ) -> bool:
        """Whether a step reads a batch that the host would not read, given what is fed.

        Args:
            fetches: operations of the session.
            roots: operations whose values a step computes.
        """
        if self.token.op not in all_before(fetches, fed=fed):
            return False
        _, *inputs = self.token.op.inputs  # the first is the global step
        given = [tensor.op for tensor in inputs if tensor not in fed]
        needed = all_before(
            [*fetches, *roots], self.placement.control_inputs, lambda op: op is self.token.op, fed
        )
        return self.placement.reads_batch(set(all_before(given, fed=fed)).difference(needed))

    def _before_step(self, awaiting: set[Any]) -> set[Any]:
        """Operations that must run before the step."""

        def waits_for(op: Any) -> list[Any]:
            return [other for other in op.control_inputs if other not in awaiting]

        return set(all_before([self.token.op], waits_for)) - {self.token.op}

    def needs(self, fetch: Any) -> frozenset[str]:
        """Names of wafer values that a fetched operation depends on, and TRAINS if it trains.

        Raises:
            UnsupportedOpError: the session would read a variable of the wafer, or would compute the
                value from the first micro-batch.
        """
        op = fetch if isinstance(fetch, tf.Operation) else fetch.op
        if op not in self._needs:
            self.placement.check_fetches([op])
            before = all_before([op])
            if self.step.split is not None and not self.placement.on_wafer(op):
                found_before = all_before([op], lambda _: (), lambda o: o is self.token.op)
                self.step.split.refuse_first(fetch.name, found_before)
            found = {self._names[other] for other in before if other in self._names}
            self._needs[op] = frozenset(found | {TRAINS} if self.train_op in before else found)
        return self._needs[op]
