from __future__ import annotations

import pathlib
import random

import pytest
from daemon import Daemon

from gnomon import ConfigError, PrecisionPlan
from gnomon.plan import GEMMS, RECIPES
from gnomon.site_glob import glob_error, site_matches

SITES = [f"model.layers.{i}.{part}" for i in range(4) for part in ("attn.q_proj", "mlp.up_proj")]
SITES.append("lm_head")


@pytest.mark.parametrize(
    ("glob", "site", "matches"),
    [
        ("*", "lm_head", True),
        ("model.layers.{0,last}.*", "model.layers.3.mlp.up_proj", True),
        ("model.layers.{0,last}.*", "model.layers.1.mlp.up_proj", False),
        ("model.*.up_proj", "model.layers.2.mlp.up_proj", True),
        ("model.layers.?.mlp.up_proj", "model.layers.12.mlp.up_proj", False),
        ("{lm_head,model.*}", "lm_head", True),
        ("lm_head", "lm_head.x", False),
        ("a+b", "aab", False),
        ("", "lm_head", False),
    ],
)
def test_globs_are_those_of_the_controller(glob: str, site: str, matches: bool) -> None:
    assert site_matches(glob, site, 4) is matches


def test_a_wrong_glob_is_described() -> None:
    assert glob_error("{a,{b}}") == "braces inside braces"
    assert glob_error("a}") == "a closing brace without an opening one"
    assert glob_error("{a") == "an opening brace without a closing one"
    many = "{" + ",".join(map(str, range(70))) + "}"
    assert "alternatives" in glob_error(many * 2)


def test_the_last_match_wins_key_by_key() -> None:
    plan = PrecisionPlan.parse(
        """
        version = 3
        [[rule]]
        match = "*"
        gemms = "fp8"
        recipe = "block"
        [[rule]]
        match = "model.layers.{0,last}.*"
        gemms = "bf16"
        [[rule]]
        match = "model.layers.0.mlp.up_proj"
        only = ["wgrad"]
        wgrad = "fp8"
        margin = 2
        """
    ).bind(SITES, 4)
    assert plan.gemm("model.layers.1.mlp.up_proj", "dgrad").fp8
    assert plan.gemm("model.layers.1.mlp.up_proj", "dgrad").gradient_format == "e4m3"
    assert not plan.gemm("model.layers.3.attn.q_proj", "fprop").fp8
    assert not plan.gemm("model.layers.0.mlp.up_proj", "fprop").fp8
    wgrad = plan.gemm("model.layers.0.mlp.up_proj", "wgrad")
    assert (wgrad.fp8, wgrad.margin, wgrad.recipe) == (True, 2, "block")


def test_the_recipe_that_keeps_wgrad_in_bf16_does() -> None:
    for recipe in ("rowwise_gw_hp", "rowwise_with_gw_hp"):
        plan = PrecisionPlan.fp8(recipe)
        assert [it.fp8 for it in plan.site("lm_head")] == [True, True, False]


def test_recipes_of_others_are_taken_by_their_names() -> None:
    plan = PrecisionPlan.parse('[[rule]]\nmatch = "*"\ngemms = "fp8"\nrecipe = "nvfp4"\n')
    assert plan.bind(SITES, 4).gemm("lm_head", "fprop").recipe == "nvfp4"


def test_a_plan_is_written_and_read_back() -> None:
    plan = PrecisionPlan.fp8("block").with_bf16_sites(SITES[:2]).with_version(7)
    again = PrecisionPlan.parse(plan.to_toml())
    assert again.version == 7
    assert again.to_toml() == plan.to_toml()
    assert not again.gemm(SITES[0], "fprop").fp8
    assert again.digest() == plan.digest() != plan.with_version(8).digest()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[[rule]]\ngemms = 'fp8'", r"plan:1: rule.match: None not accepted"),
        ("\n\n[[rule]]\nmatch = '*'\nx = 1", r"plan:3: rule.x: an unknown key"),
        ("[[rule]]\nmatch = '*'\nfprop = 'fp4'", r"rule.fprop: 'fp4'.*\"fp8\", \"bf16\""),
        ("[[rule]]\nmatch = '*'\nrecipe = 'best'", r"rule.recipe: 'best'.*tensorwise"),
        ("[[rule]]\nmatch = '{a'\n", r"an opening brace without a closing one"),
        ("[[rule]]\nmatch = '*'\nonly = ['x']", r"rule.only"),
        ("[[rule]]\nmatch = '*'\nonly = ['fprop']\nwgrad = 'fp8'", r"not about wgrad"),
        ("[[rule]]\nmatch = 'a*'\nmoments = 'fp8'", r"they are of the whole run"),
        ("[[rule]]\nmatch = '*'\nmargin = true", r"rule.margin: True"),
        ("[[rule]]\nmatch = '*'\npromote_every = 33", r"a multiple of 32"),
        ("version = 'x'", r"plan: version"),
        ("rule = 3", r"plan: rule"),
        ("colour = 3", r"plan.colour: an unknown key"),
        ("[[rule", r"not TOML"),
    ],
)
def test_a_wrong_plan_is_one_error_with_its_place(text: str, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        PrecisionPlan.parse(text)


def test_a_rule_that_matches_no_module_is_an_error_with_its_line() -> None:
    plan = PrecisionPlan.parse("[[rule]]\nmatch = 'layers.*'\ngemms = 'bf16'\n", "p.toml")
    with pytest.raises(ConfigError, match=r"p.toml:1: match: 'layers.\*'.*q_proj, .*9 sites"):
        plan.bind(SITES, 4, "p.toml")


def test_e5m2_times_e5m2_and_formats_without_a_scale_are_refused() -> None:
    both = "[[rule]]\nmatch = '*'\ngemms = 'fp8'\nforward_format = 'e5m2'\n"
    with pytest.raises(ConfigError, match="no hardware multiplies E5M2 by E5M2"):
        PrecisionPlan.parse(both).bind(SITES, 4)
    PrecisionPlan.parse("allow_e5m2_e5m2 = true\n" + both).bind(SITES, 4)
    wide = "[[rule]]\nmatch = '*'\ngemms = 'fp8'\nforward_format = 'e8m3'\n"
    with pytest.raises(ConfigError, match='with recipe = "current"'):
        PrecisionPlan.parse(wide).bind(SITES, 4)


def test_a_plan_is_a_text_a_file_or_itself(tmp_path: pathlib.Path) -> None:
    plan = PrecisionPlan.fp8()
    file = tmp_path / "plan.toml"
    file.write_text(plan.to_toml())
    assert PrecisionPlan.of(file).digest() == plan.digest()
    assert PrecisionPlan.of(str(file)).digest() == plan.digest()
    assert PrecisionPlan.of(plan.to_toml()).digest() == plan.digest()
    assert PrecisionPlan.of(plan) is plan
    with pytest.raises(ConfigError, match=r"a file that can be read \(.*nothing.toml"):
        PrecisionPlan.of(tmp_path / "nothing.toml")
    with pytest.raises(ConfigError, match="gemm: 'wgard'"):
        plan.gemm("lm_head", "wgard")


def random_plan(numbers: random.Random) -> PrecisionPlan:
    globs = ["*", "model.layers.{0,last}.*", "*.up_proj", "model.layers.?.attn.*", "lm_head"]
    rules = []
    for _ in range(numbers.randint(1, 5)):
        rule = [f'match = "{numbers.choice(globs)}"']
        only = sorted(numbers.sample(GEMMS, numbers.randint(1, 3)), key=GEMMS.index)
        if len(only) < 3:
            rule.append(f"only = {only}")
        if numbers.random() < 0.5:
            rule.append(f'gemms = "{numbers.choice(["fp8", "bf16"])}"')
        else:
            rule += [f'{gemm} = "{numbers.choice(["fp8", "bf16"])}"' for gemm in only]
        recipe = numbers.choice([*RECIPES[:-1], ""])
        rule += [f'recipe = "{recipe}"'] if recipe else []
        if recipe == "rowwise_gw_hp":
            rule = [each for each in rule if not each.startswith("wgrad")]
        rules.append("[[rule]]\n" + "\n".join(rule) + "\n")
    return PrecisionPlan.parse("version = 1\n" + "".join(rules))


def test_the_controller_resolves_plans_to_the_same(daemon: Daemon) -> None:
    """Its /layers says what each site runs in under a run's plan."""
    fingerprint = dict.fromkeys(("device", "backend", "libraries", "build"), "x")
    for seed in range(40):
        plan = random_plan(random.Random(seed)).bind(SITES, 4)
        registration = {
            "name": "plans",
            "job_id": str(seed),
            "fingerprint": {**fingerprint, "world_size": 1, "threads": 1},
            "base_plan": plan.to_toml(),
            "sites": SITES,
            "layers": 4,
            "checkpoint_every": 0,
        }
        run = daemon.post("/v1/runs", registration)["run"]
        for row in daemon.get(f"/v1/runs/{run}/layers"):
            ours = ["fp8" if it.fp8 else "bf16" for it in plan.site(row["site"])]
            theirs = [row[gemm] for gemm in GEMMS]
            assert ours == theirs, (seed, row, plan.to_toml())
            recipes = [it.recipe for it in plan.site(row["site"]) if it.fp8]
            if recipes and len(set(recipes)) == 1:
                assert row["recipe"] == recipes[0], (seed, row, plan.to_toml())
