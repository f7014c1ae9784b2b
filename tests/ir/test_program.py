"""Programs for other sizes: types, attributes, branches and prices follow; memory stays."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tf.compiler.pipeline import compile_step
from cerebras_tf.errors import GraphError
from cerebras_tf.ir import Dim, TensorType, symbols_in
from cerebras_tf.ir.program import ARENA, CONSTANT, Cost, Instruction, Program, Slot
from cerebras_tf.ir.schedule import Run
from cerebras_tf.ir.step import Draw
from cerebras_tf.ops.cost import price
from tests.compiler.test_pipeline import branch
from tests.messages import raises
from tests.steps import StepBuilder

MOST, LIMIT, WIDTH = 8, 32, 4


def rows_program():
    """tanh(x w) of R rows, cut in two by a reshape whose attribute has the symbol, and a branch."""
    s = StepBuilder()
    rows = Dim.symbol("R", MOST, LIMIT)
    p = s.feature("p", dtype="bool")
    x, w = s.feature("x", rows, WIDTH), s.variable("w", WIDTH, WIDTH)
    y = s.b.op("tanh", s.matmul(x, w))
    flat = s.b.op("transpose", s.b.op("reshape", y, shape=(2 * rows, 2)), permutation=(1, 0))

    def product(b, v, w):
        return b.op("matmul", v, w, transpose_a=False, transpose_b=False)

    graphs = {"then": branch("t", product, y, w), "orelse": branch("e", lambda b, v, w: v, y, w)}
    return compile_step(s.done(flat=flat, chosen=s.b.op("cond", p, y, w, **graphs)))


def held(program):
    """The branches of a program's conditional."""
    (item,) = [item for item in program.instructions() if item.op == "cond"]
    return [item.attrs[key] for key in ("then", "orelse")]


def test_a_program_for_a_size_has_no_symbol_left():
    program = rows_program()
    assert {symbol.name for symbol in program.symbols} == {"R"}
    sized = program.at({"R": 3}, price)
    for part in (sized, *held(sized)):
        assert part.symbols == frozenset()
        for body in part.bodies:
            for item in body:
                given = {k: v for k, v in item.attrs.items() if not isinstance(v, Program)}
                assert not symbols_in(given)
    assert sized.slots[sized.features["x"]].type == TensorType("float32", (3, WIDTH))
    assert sized.slots[sized.results["flat"]].type.shape == (2, 6)


def test_every_value_stays_where_the_bound_has_it():
    program = rows_program()
    sized = program.at({"R": 3}, price)
    places = [[(s.kind, s.offset, s.base, s.life) for s in p.slots] for p in (program, sized)]
    assert places[0] == places[1]
    assert (sized.arena_bytes, sized.schedule) == (program.arena_bytes, program.schedule)


def test_the_program_itself_keeps_its_symbols():
    program = rows_program()
    before = [slot.type for slot in program.slots]
    program.at({"R": 3}, price)
    program.bounded({"R": 16}, price)
    assert [slot.type for slot in program.slots] == before


def test_prices_are_those_of_the_size():
    program = rows_program()
    small, large = (program.at({"R": rows}, price) for rows in (2, MOST))
    flops = [
        sum(item.cost.flops for item in p.instructions() if item.op == "matmul")
        for p in (small, large)
    ]
    assert flops == [2 * rows * WIDTH * WIDTH for rows in (2, MOST)]
    inside = [held(p)[0].flops for p in (small, large)]
    assert inside == flops


@pytest.mark.parametrize("sizes", [{}, {"R": 0}, {"R": MOST + 1}, {"S": 3}])
def test_sizes_that_are_not_given_or_beyond_the_bound_are_refused(sizes):
    with raises(GraphError, "R", "[1, 8]"):
        rows_program().at(sizes, price)


def test_other_bounds_reach_every_type_and_branch_and_keep_the_limit():
    larger = rows_program().bounded({"R": 16}, lambda *given: Cost())
    for part in (larger, *held(larger)):
        assert {(s.name, s.bound, s.limit) for s in part.symbols} == {("R", 16, LIMIT)}
    assert larger.at({"R": 16}, price).slots[larger.features["x"]].type.shape == (16, WIDTH)
    with pytest.raises(GraphError):
        larger.bounded({"R": LIMIT + 1}, price)


def test_bodies_are_priced_by_the_slots_they_run_on():
    """A body's positions are no slot numbers."""
    rows = Dim.symbol("R", MOST)
    unlike = TensorType("float32", (100, 100))
    kind = TensorType("float32", (rows,))
    program = Program(
        slots=[Slot(unlike, ARENA), Slot(kind, ARENA), Slot(kind, ARENA)],
        bodies=[[Instruction("exp", (0,), (1,), {})]],
        schedule=[Run(0, "forward", 0, (1, 2))],
    )
    seen = []
    program.at({"R": 5}, lambda op, inputs, outputs, attrs: seen.append((inputs, outputs)))
    assert seen == [([TensorType("float32", (5,))], [TensorType("float32", (5,))])]


def test_a_seed_is_replaced_only_where_instructions_draw():
    """Numbers that happen to be those of the seed stay, of branches too."""
    pair = TensorType("int64", (2,))

    def drawing(*others):
        """A program that reads one constant and draws by the other."""
        program = Program(slots=[Slot(pair, CONSTANT), Slot(pair, CONSTANT), Slot(pair, ARENA)])
        program.constants = {0: np.array([8, 64]), 1: np.array([8, 3])}
        draw = Instruction("random_uniform", (2, 1), (2,), {})
        program.bodies = [[Instruction("reshape", (0,), (2,), {}), draw, *others]]
        program.schedule = [Run(0, "forward", 0, (0, 1, 2))]
        return program

    branch = drawing()
    program = drawing(Instruction("cond", (2, 2), (2,), {"then": branch}))
    program.draws["random_step/noise"] = Draw(8, 1, 4)
    program.replace_seed(8, 5, lambda item: item.op == "random_uniform")
    for one in (program, branch):
        assert one.constants[0].tolist() == [8, 64] and one.constants[1].tolist() == [5, 3]
    assert program.draws["random_step/noise"].key == 5
