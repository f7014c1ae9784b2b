"""Programs that were changed in their files are refused, and never read or write foreign memory."""

from __future__ import annotations

import json
import random
import zipfile

import pytest

from cerebras_tf.compiler.pipeline import Options, compile_step
from cerebras_tf.errors import CerebrasError, GraphError
from cerebras_tf.ir.program_file import members_digest, save_program
from cerebras_tf.runtime.saved_run import running_saved
from cerebras_tf.runtime.verify_program import load_verified
from tests.machines import client_of, store_of
from tests.messages import raises
from tests.ops.test_loops import recurrent_step
from tests.runtime.test_packing import BATCHES, tagging_step
from tests.steps import features_of, residual_step, starting_values
from tests.trust.mutations import changed_value, places_of

STEPS = {
    "residual": (lambda: residual_step(2), Options()),
    "pipelined": (lambda: residual_step(2), Options(streaming=False)),
    "packing": (lambda: tagging_step(4), Options(strip=True)),
}


class Mutations:
    """The changed files of one program."""

    def __init__(self, name, folder):
        make, options = STEPS[name]
        self.name, self.step, self.path = name, make(), folder / "p"
        save_program(compile_step(make(), options), self.path)
        with zipfile.ZipFile(self.path) as archive:
            self.members = {each: archive.read(each) for each in archive.namelist()}
        self.structure = json.loads(self.members["program.json"])
        self.places = list(places_of(self.structure))
        self.run()

    def write(self, structure, signed):
        """Writes a file with a structure; signed: with its digest."""
        members = {**self.members, "program.json": json.dumps(structure).encode()}
        digest = members.pop("digest")
        with zipfile.ZipFile(self.path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
            archive.writestr("digest", members_digest(archive) if signed else digest)

    def run(self):
        variables = starting_values(self.step)
        features = BATCHES[0] if self.name == "packing" else features_of(self.step)
        store = store_of(self.step.specs.values(), variables)
        program = load_verified(self.path)
        with running_saved(self.path):
            return client_of(program, store).run(features)


def check_mutations(name, folder, count, seed):
    chance, mutations = random.Random(seed), Mutations(name, folder)
    refused = 0
    for number in range(count):
        structure, what = changed_value(mutations.structure, chance, mutations.places)
        if structure == mutations.structure:
            continue
        if number % 20 == 0:
            mutations.write(structure, signed=False)
            with raises(GraphError, mutations.path):
                load_verified(mutations.path)
        mutations.write(structure, signed=True)
        try:
            mutations.run()  # no crash
        except CerebrasError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
    assert refused > count // 2


@pytest.mark.parametrize("name", STEPS)
def test_changed_programs_are_refused_or_run_within_their_memory(tmp_path, name):
    check_mutations(name, tmp_path, 80, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("seed", range(1, 4))
def test_thousands_of_changed_programs(tmp_path, name, seed):
    check_mutations(name, tmp_path, 1000, seed)


def test_a_loop_runs_only_over_slices_that_exist(tmp_path):
    program = compile_step(recurrent_step(True, False))
    save_program(program, tmp_path / "p")
    load_verified(tmp_path / "p")
    loops = [item for body in program.bodies for item in body if item.op == "scan"]
    for change in ({"length": 9}, {"carries": 0}, {"xs": 7}, {"body": None}):
        before = {key: loops[0].attrs[key] for key in change}
        loops[0].attrs.update(change)
        save_program(program, tmp_path / "p")
        with pytest.raises(GraphError):
            load_verified(tmp_path / "p")
        loops[0].attrs.update(before)
