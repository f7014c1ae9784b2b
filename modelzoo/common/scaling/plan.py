"""What a budget of compute or time buys: model, tokens, batch, loss and days."""

from dataclasses import dataclass

from cerebras_tf.api import Prediction, load_system, predict_streaming, transformer
from cerebras_tf.errors import ConfigError
from modelzoo.common.scaling.law import PUBLISHED, Law, training_flops

TOKENS_PER_PARAMETER = 20  # Hoffmann et al. (2022); the Cerebras-GPT family follows it
VOCABULARY, SEQUENCE = 50257, 2048
SECONDS_PER_DAY = 86400
MAX_STEPS = 2**63  # a global step has 64 bits


@dataclass(frozen=True)
class Member:
    """A model of the Cerebras-GPT family (arXiv 2304.03208)."""

    name: str
    hidden: int
    layers: int
    heads: int
    batch: int

    @property
    def parameters(self):
        """Weights, embeddings included."""
        return self.workload(1).parameters

    def workload(self, batch):
        """A step with a batch of sequences."""
        return transformer(
            self.name,
            batch,
            self.hidden,
            self.layers,
            self.heads,
            4 * self.hidden,
            VOCABULARY,
            SEQUENCE,
        )

    def flops(self, tokens):
        """Operations of training on that many tokens, as the law counts them."""
        sizes = self.hidden, self.layers, self.heads, 4 * self.hidden
        return training_flops(*sizes, VOCABULARY, SEQUENCE, tokens)


FAMILY = (
    Member("111M", 768, 10, 12, 120),
    Member("256M", 1088, 14, 17, 264),
    Member("590M", 1536, 18, 12, 264),
    Member("1.3B", 2048, 24, 16, 528),
    Member("2.7B", 2560, 32, 32, 528),
    Member("6.7B", 4096, 32, 32, 1040),
    Member("13B", 5120, 40, 40, 1080),
)


@dataclass(frozen=True)
class Plan:
    """What to train."""

    member: Member
    flops: float
    tokens: float
    steps: int
    loss: float
    days: float
    num_csx: int
    prediction: Prediction
    law: Law

    def __str__(self):
        found = self.prediction
        spill = found.activations.spilled_bytes
        of_what = " of the Pile" if self.law == PUBLISHED else ", by the law given"
        lines = [
            f"model            Cerebras-GPT {self.member.name}, {self.member.parameters:,} "
            f"parameters: hidden {self.member.hidden}, {self.member.layers} layers, "
            f"{self.member.heads} heads",
            f"tokens           {self.tokens:,.4g}, {self.tokens / self.member.parameters:.3g} per "
            f"parameter (compute-optimal: {TOKENS_PER_PARAMETER})",
            f"batch            {self.member.batch} sequences of {SEQUENCE}, {self.steps:,} steps",
            f"compute          {self.flops:.4g} FLOP",
            f"predicted loss   {self.loss:.4g} nats per token{of_what}",
            f"predicted time   {self.days:,.3g} days on {self.num_csx} {found.system.name}, "
            f"release {found.release.name}, {found.utilisation:.1%} of the peak",
        ]
        if spill:
            lines.append(f"                 {spill / 1e9:.1f} GB of activations per system spill")
        return "\n".join(lines)


def make_plan(flops=None, days=None, num_csx=1, law: Law = PUBLISHED, machine="cs2", release=None):
    """The compute-optimal model of the family for a budget.

    The model is the one whose training on 20 tokens per parameter is nearest to the budget, as a
    ratio; its tokens use the budget up.

    Args:
        flops: operations of the run; or
        release: of the software; the machine's default for None.
    """
    budget = flops if days is None else days
    if (flops is None) == (days is None) or not budget > 0:
        raise ConfigError(
            "scaling plan: the budget must be a number of FLOP or days above 0. Received: "
            f"{budget}. Use --budget 1e20 or --budget 10days."
        )
    loaded = load_system(machine)
    try:
        plans = [_plan_for(member, flops, days, num_csx, law, loaded, release) for member in FAMILY]
    except (OverflowError, ZeroDivisionError) as error:
        raise ConfigError(
            f"scaling plan: steps and loss must be finite numbers. Received: {budget:g} "
            f"{'FLOP' if days is None else 'days'}, by {law}. Use another budget or law."
        ) from error

    def distance(plan):
        ratio = plan.tokens / (TOKENS_PER_PARAMETER * plan.member.parameters)
        return max(ratio, 1 / ratio)

    best = min(plans, key=distance)
    if best.tokens < best.member.batch * SEQUENCE:
        raise ConfigError(
            f"scaling plan: the budget must be enough for one step of {best.member.name}. "
            f"Received: {budget:g} {'FLOP' if days is None else 'days'}, of which a step takes "
            f"{best.member.batch * SEQUENCE / best.tokens * budget:.3g}. Increase it; write days "
            "as in 10days."
        )
    return best


def _plan_for(member, flops, days, num_csx, law, machine, release):
    """The Plan of one member of the family; raises an OverflowError beyond what steps may be."""
    workload = member.workload(-(-member.batch // num_csx))
    step = predict_streaming(workload, machine, release, num_csx)
    tokens_per_s = member.batch * SEQUENCE / step.step_s
    per_token = member.flops(1)
    tokens = flops / per_token if days is None else days * SECONDS_PER_DAY * tokens_per_s
    steps = max(1, round(tokens / (member.batch * SEQUENCE)))
    if steps >= MAX_STEPS:
        raise OverflowError(f"{steps} steps")
    return Plan(
        member,
        tokens * per_token,
        tokens,
        steps,
        law.loss(tokens * per_token),
        tokens / tokens_per_s / SECONDS_PER_DAY,
        num_csx,
        step,
        law,
    )
