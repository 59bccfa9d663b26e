"""What is trained: one small model on one text, in one kind of numbers or another."""

from dataclasses import dataclass

LAYERS = 3
SITES = [
    f"model.layers.{layer}.{name}"
    for layer in range(LAYERS)
    for name in (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    )
] + ["lm_head"]

LEARNING_RATE = 2e-3
WARMUP_STEPS = 50
TOO_HIGH = 8e-2  # reached at the last step, rising from 0 all the way
FROZEN_FROM = 100


@dataclass(frozen=True)
class Condition:
    name: str
    label: str
    group: str  # reference, recipes, mantissa, bad
    plan: str  # a precision plan, TOML
    learning_rate: float = LEARNING_RATE
    ramp: bool = False  # the learning rate rises until the last step
    init_std: float = 0.02
    frozen: bool = False
    what_if: tuple = ("current",)
    reference: str = "bf16"  # whose runs its loss is compared with
    statistics_reference: str = "bf16"  # whose statistics are called healthy
    seeds_max: int = 1000
    cost: float = 1.0  # of a step, against BF16; for the time left alone


def rule(recipe, formats=None, **keys):
    lines = ["[[rule]]", 'match = "*"', 'gemms = "fp8"', f'recipe = "{recipe}"']
    if formats:
        lines += [f'forward_format = "{formats[0]}"', f'gradient_format = "{formats[1]}"']
    for key, value in keys.items():
        lines.append(f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}")
    return "\n".join(lines) + "\n"


BF16_PLAN = '[[rule]]\nmatch = "*"\ngemms = "bf16"\n'
E5M2_PLAN = "allow_e5m2_e5m2 = true\n" + rule("current", ("e5m2", "e5m2"))

CONDITIONS = [
    Condition("bf16", "BF16", "reference", BF16_PLAN, what_if=("current", "current:e5m2/e5m2")),
    Condition("current", "current", "recipes", rule("current"), cost=1.2),
    Condition(
        "bf16_lr",
        "BF16, learning rate too high",
        "bad",
        BF16_PLAN,
        learning_rate=TOO_HIGH,
        ramp=True,
    ),
    Condition(
        "current_lr",
        "current, learning rate too high",
        "bad",
        rule("current"),
        learning_rate=TOO_HIGH,
        ramp=True,
        reference="bf16_lr",
        cost=1.2,
    ),
    Condition("delayed", "delayed", "recipes", rule("delayed"), cost=1.2),
    Condition(
        "delayed_frozen",
        f"delayed, scales frozen from step {FROZEN_FROM}",
        "bad",
        rule("delayed"),
        frozen=True,
        reference="delayed",
        statistics_reference="delayed",
        cost=1.2,
    ),
    Condition("current_e5m2", "current, E5M2 everywhere", "bad", E5M2_PLAN, cost=1.2),
    Condition("block", "block", "recipes", rule("block"), cost=1.3),
    Condition("mx", "mx", "recipes", rule("mx"), cost=1.5),
    Condition("mx_e2m1", "mx, E2M1", "recipes", rule("mx", ("e2m1", "e2m1")), cost=1.5),
    Condition("e8m3", "E8M3", "mantissa", rule("none", ("e8m3", "e8m3")), cost=1.2),
    Condition("e8m4", "E8M4", "mantissa", rule("none", ("e8m4", "e8m4")), cost=1.2),
    Condition("rowwise", "rowwise", "recipes", rule("rowwise"), cost=1.3),
    Condition(
        "rowwise_gw_hp", "rowwise, wgrad in BF16", "recipes", rule("rowwise_gw_hp"), cost=1.3
    ),
    Condition("e8m5", "E8M5", "mantissa", rule("none", ("e8m5", "e8m5")), cost=1.2),
    Condition("e8m6", "E8M6", "mantissa", rule("none", ("e8m6", "e8m6")), cost=1.2),
    # Does a higher rate bring out what E5M2 everywhere does not show at the usual one?
    Condition(
        "bf16_lr3",
        "BF16, rate × 3",
        "rate",
        BF16_PLAN,
        learning_rate=3 * LEARNING_RATE,
        what_if=("current", "current:e5m2/e5m2"),
        seeds_max=2,
    ),
    Condition(
        "current_lr3",
        "current, rate × 3",
        "rate",
        rule("current"),
        learning_rate=3 * LEARNING_RATE,
        reference="bf16_lr3",
        statistics_reference="bf16_lr3",
        seeds_max=2,
        cost=1.2,
    ),
    Condition(
        "e5m2_lr3",
        "current, E5M2 everywhere, rate × 3",
        "rate",
        E5M2_PLAN,
        learning_rate=3 * LEARNING_RATE,
        reference="bf16_lr3",
        statistics_reference="bf16_lr3",
        seeds_max=2,
        cost=1.2,
    ),
    # The same in BF16 from weights that differ by a millionth, and by what BF16 rounds off: how far
    # apart chance alone takes runs of one seed.
    Condition(
        "bf16_twin", "BF16, weights off by 1e-6", "reference", BF16_PLAN, init_std=0.02 * (1 + 1e-6)
    ),
    Condition(
        "bf16_twin2",
        "BF16, weights off by 1e-3",
        "reference",
        BF16_PLAN,
        init_std=0.02 * (1 + 1e-3),
        seeds_max=5,
    ),
    Condition(
        "current_hopper",
        "current, Hopper sums",
        "recipes",
        rule("current", accumulate="hopper", promote_every=0),
        seeds_max=1,
        cost=11,
    ),
]
BY_NAME = {condition.name: condition for condition in CONDITIONS}

STATISTICS_EVERY = 20
STATISTICS_MATCH = [
    "model.layers.*.self_attn.{q_proj,o_proj}",
    "model.layers.*.mlp.{gate_proj,down_proj}",
    "lm_head",
]


def quoted(items):
    return "[" + ", ".join(f'"{item}"' for item in items) + "]"


def trainer_config(condition, seed, steps, dataset):
    """The trainer's file for one run; the plan stands beside it as plan.toml."""
    text = f"""[run]
name = "{condition.name}"
job_id = "{seed}"
seed = {seed}
steps = {steps}
threads = 1

[model]
layers = {LAYERS}
width = 128
heads = 4
kv_heads = 2
ffn = 384
vocabulary = 1024
context = 64
init_std = {condition.init_std!r}

[data]
dir = "{dataset}"

[batch]
sequences = 8
tokens = 64

[optimizer]
learning_rate = {condition.learning_rate!r}
warmup_steps = {steps if condition.ramp else WARMUP_STEPS}

[precision]
plan = "plan.toml"

[checkpoint]
every = 1000000

[eval]
sequences = 1024

[statistics]
every = {STATISTICS_EVERY}
match = {quoted(STATISTICS_MATCH)}
tensors = ["input", "weight", "gradient"]
what_if = {quoted(condition.what_if)}
"""
    if condition.frozen:
        for site in SITES:
            for tensor in ("input", "weight", "gradient"):
                text += (
                    f'\n[[fault]]\nkind = "frozen_amax"\nsite = "{site}"\n'
                    f'tensor = "{tensor}"\nstart_step = {FROZEN_FROM}\nend_step = 0\n'
                )
    return text
