"""A family of small models that learns from the bundled text, to fit a law of one's own to.

All are `configs/params_gpt3_tiny.yaml` but for their width, learning rate and steps. These suffice
to leave the first fall behind, down to the loss of pairs of letters, which no law describes. They
grow much slower than those of a compute-optimal family would, for two cores have minutes.
"""

from dataclasses import dataclass

import yaml

from cerebras_tf.whole_file import write_whole
from modelzoo.common.config.params import read_yaml, set_key

WARM_UP = 0.1  # share of the steps
FALLS_TO = 0.1  # share of the learning rate at the end
EVALUATED = 40  # batches


@dataclass(frozen=True)
class Size:
    """A model of the family: 4 layers with heads of 32.

    Attributes:
        steps: of training, of 24 windows of 128 bytes each.
    """

    hidden: int
    steps: int
    learning_rate: float

    @property
    def name(self):
        """The name of its params file and folder."""
        return f"family_{self.hidden}"


SIZES = (
    Size(64, 260, 4e-3),
    Size(96, 250, 3.5e-3),
    Size(128, 260, 3e-3),
    Size(192, 250, 2e-3),
    Size(256, 290, 1.5e-3),
)


def write_params(size, base, folder):
    """Writes the params file of a model; returns its path."""
    tree, _ = read_yaml(base)
    warm_up = round(WARM_UP * size.steps)
    values = {
        "train_input.eval_fraction": 0.1,
        "model.hidden_size": size.hidden,
        "model.num_heads": size.hidden // 32,
        "model.filter_size": 4 * size.hidden,
        "optimizer.learning_rate": [
            {
                "scheduler": "Linear",
                "initial_learning_rate": 0.0,
                "end_learning_rate": size.learning_rate,
                "steps": warm_up,
            },
            {
                "scheduler": "Cosine",
                "initial_learning_rate": size.learning_rate,
                "decay_steps": size.steps - warm_up,
                "alpha": FALLS_TO,
            },
        ],
        "runconfig.max_steps": size.steps,
        "runconfig.eval_steps": EVALUATED,
        "runconfig.save_checkpoints_steps": size.steps,
    }
    for key, value in values.items():
        set_key(tree, key, value)
    path = folder / f"params_{size.name}.yaml"
    write_whole(path, yaml.safe_dump(tree, sort_keys=False))
    return path
