"""A PrecisionPlan says in which format each GEMM of the model runs: TOML, last match wins.

    plan = PrecisionPlan.load("plan.toml").bind(sites, layers=32)
    plan.gemm("model.layers.0.mlp.up_proj", "wgrad").fp8

A GEMM is a module's name and "fprop", "dgrad" or "wgrad". Rules are tried in order; key by key the
last one that matches counts. A GEMM that no rule mentions runs in BF16.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gnomon.errors import ConfigError
from gnomon.site_glob import ALTERNATIVES_MAX, glob_error, site_matches

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GEMMS = ("fprop", "dgrad", "wgrad")
RECIPES = ("current", "delayed", "rowwise", "rowwise_gw_hp", "block", "mx", "none")
# Names of other programs, which the controller compares and does not interpret.
FOREIGN_RECIPES = ("tensorwise", "rowwise_with_gw_hp", "mxfp8", "nvfp4")
SCALED_FORMATS = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
WIDE_FORMATS = ("e8m3", "e8m4", "e8m5", "e8m6")

_MOMENTS = ("fp32", "bf16", "fp8")
_WIRE = ("full", "e4m3", "e5m2", "e4m3:tensor", "e5m2:tensor")
# Keys of a rule about the whole run.
_RUN_KEYS: dict[str, tuple[str, ...]] = {
    "first_moment": _MOMENTS,
    "second_moment": _MOMENTS,
    "gradient_communication": _WIRE,
    "weight_communication": _WIRE,
    "moments": _MOMENTS,
    "communication": _WIRE,
}
_CHOICES: dict[str, tuple[str, ...]] = {
    "gemms": ("fp8", "bf16"),
    "fprop": ("fp8", "bf16"),
    "dgrad": ("fp8", "bf16"),
    "wgrad": ("fp8", "bf16"),
    "forward_format": SCALED_FORMATS + WIDE_FORMATS,
    "gradient_format": SCALED_FORMATS + WIDE_FORMATS,
    "recipe": RECIPES + FOREIGN_RECIPES,
    "mx_scale": ("up", "ocp"),
    "accumulate": ("fp32", "hopper"),
    **_RUN_KEYS,
}
_RANGES = {"amax_history": (1, 65536), "margin": (-64, 64), "promote_every": (0, 1 << 20)}


@dataclass(frozen=True)
class GemmPrecision:
    """How one GEMM runs; without `fp8` it is BF16 and the rest has no meaning."""

    fp8: bool = False
    forward_format: str = "e4m3"  # activations and weights
    gradient_format: str = "e5m2"  # output gradients
    recipe: str = "current"
    amax_history: int = 1024  # steps, `delayed`
    margin: int = 0  # `delayed`: the scale is FP8_MAX / amax / 2**margin
    power_of_two: bool = False
    mx_scale: str = "up"
    accumulate: str = "fp32"
    promote_every: int | None = None  # terms; None is what the recipe does


BF16 = GemmPrecision()


@dataclass(frozen=True)
class PlanRule:
    """One [[rule]]: the keys that it says, `match` and `only` apart."""

    match: str
    only: tuple[str, ...] = GEMMS
    keys: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    line: int = 0

    def gemm_value(self, gemm: str) -> str:
        """ "fp8", "bf16", or empty where the rule does not say."""
        if gemm not in self.only:
            return ""
        return str(self.keys.get(gemm, self.keys.get("gemms", "")))


@dataclass(frozen=True)
class PrecisionPlan:
    """An immutable plan. `layers` is the model's number of layers, for `last` in globs."""

    rules: tuple[PlanRule, ...] = ()
    version: int = 0
    layers: int = 0
    allow_e5m2_e5m2: bool = False
    allow_ragged_tiles: bool = False
    required: bool = False
    _resolved: dict[tuple[str, str], GemmPrecision] = dataclasses.field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @staticmethod
    def bf16(version: int = 0) -> PrecisionPlan:
        """The whole run in BF16: no rule at all."""
        return PrecisionPlan(version=version)

    @staticmethod
    def fp8(recipe: str = "current") -> PrecisionPlan:
        """Every GEMM of every site in FP8 by this recipe."""
        if recipe not in RECIPES + FOREIGN_RECIPES or recipe == "none":
            raise ConfigError("recipe", repr(recipe), _listed(RECIPES[:-1] + FOREIGN_RECIPES))
        return PrecisionPlan((PlanRule("*", keys={"gemms": "fp8", "recipe": recipe}),))

    @staticmethod
    def parse(text: str, file: str = "plan") -> PrecisionPlan:
        """Reads TOML; `file` is for messages. Raises ConfigError with file, line and key."""
        return _Parser(text, file).plan()

    @staticmethod
    def load(path: str | os.PathLike[str]) -> PrecisionPlan:
        """Reads a plan's file. Raises ConfigError."""
        try:
            text = pathlib.Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                "plan", repr(os.fspath(path)), f"a file that can be read ({error})"
            ) from None
        return PrecisionPlan.parse(text, os.fspath(path))

    @staticmethod
    def of(plan: str | os.PathLike[str] | PrecisionPlan) -> PrecisionPlan:
        """A plan, the text of one (which has a line's end or is empty), or a file's name."""
        if isinstance(plan, PrecisionPlan):
            return plan
        if isinstance(plan, str) and ("\n" in plan or not plan):
            return PrecisionPlan.parse(plan)
        return PrecisionPlan.load(plan)

    def bind(self, sites: Sequence[str], layers: int, file: str = "plan") -> PrecisionPlan:
        """This plan for a model of `layers` layers, checked against its sites.

        Raises ConfigError where a rule matches no site, where a GEMM would multiply E5M2 by E5M2
        and where a format does not go with its recipe. The controller checks the rest.
        """
        bound = dataclasses.replace(self, layers=layers)
        for rule in bound.rules:
            if not any(site_matches(rule.match, site, layers) for site in sites):
                raise ConfigError(
                    f"{file}:{rule.line}: match",
                    repr(rule.match),
                    "a glob that matches at least one of the model's sites: " + _some(sites),
                )
        for site in sites:
            for gemm in GEMMS:
                bound._check(site, gemm, file)
        return bound

    def with_bf16_sites(self, sites: Sequence[str]) -> PrecisionPlan:
        """This plan with these sites in BF16."""
        rules = list(self.rules)
        for first in range(0, len(sites), ALTERNATIVES_MAX):
            part = sites[first : first + ALTERNATIVES_MAX]
            match = part[0] if len(part) == 1 else "{" + ",".join(part) + "}"
            rules.append(PlanRule(match, keys={"gemms": "bf16"}))
        return dataclasses.replace(self, rules=tuple(rules))

    def with_version(self, version: int) -> PrecisionPlan:
        """The same rules under another version."""
        return dataclasses.replace(self, version=version)

    def gemm(self, site: str, gemm: str) -> GemmPrecision:
        """The precision of one GEMM: "fprop", "dgrad" or "wgrad" of a module's name."""
        it = self._resolved.get((site, gemm))
        if it is None:
            if gemm not in GEMMS:
                raise ConfigError("gemm", repr(gemm), _listed(GEMMS))
            it = self._resolved[site, gemm] = _resolve(self, site, gemm)
        return it

    def site(self, site: str) -> tuple[GemmPrecision, GemmPrecision, GemmPrecision]:
        """The precisions of fprop, dgrad and wgrad."""
        return self.gemm(site, "fprop"), self.gemm(site, "dgrad"), self.gemm(site, "wgrad")

    def any_fp8(self, sites: Sequence[str]) -> bool:
        """Whether any GEMM of these sites runs in FP8."""
        return any(it.fp8 for site in sites for it in self.site(site))

    def of_run(self) -> dict[str, str]:
        """The optimizer's moments and what travels between ranks."""
        values = dict.fromkeys(("first_moment", "second_moment"), "fp32")
        values |= dict.fromkeys(("gradient_communication", "weight_communication"), "full")
        for rule in self.rules:
            for key in ("first_moment", "second_moment"):
                values[key] = rule.keys.get(key, rule.keys.get("moments", values[key]))
            for key in ("gradient_communication", "weight_communication"):
                values[key] = rule.keys.get(key, rule.keys.get("communication", values[key]))
        return values

    def digest(self) -> str:
        """A hash of what the plan says, its version too: equal plans have equal digests."""
        return hashlib.sha256(self.to_toml().encode()).hexdigest()[:16]

    def to_toml(self) -> str:
        """The plan as TOML; `parse` reads it back."""
        lines = [f"version = {self.version}"]
        for flag in ("allow_e5m2_e5m2", "allow_ragged_tiles", "required"):
            lines += [f"{flag} = true"] if getattr(self, flag) else []
        for rule in self.rules:
            lines += ["", "[[rule]]", f"match = {_toml(rule.match)}"]
            if rule.only != GEMMS:
                lines += ["only = [" + ", ".join(_toml(gemm) for gemm in rule.only) + "]"]
            lines += [f"{key} = {_toml(value)}" for key, value in rule.keys.items()]
        return "\n".join(lines) + "\n"

    def _check(self, site: str, gemm: str, file: str) -> None:
        it = self.gemm(site, gemm)
        if not it.fp8 or it.recipe in FOREIGN_RECIPES:
            return
        at = f"(at the {gemm} of {site})"
        accepted = WIDE_FORMATS if it.recipe == "none" else SCALED_FORMATS
        keys = ("forward_format",) if gemm == "fprop" else ("forward_format", "gradient_format")
        for key in keys:
            if getattr(it, key) not in accepted:
                raise ConfigError(
                    f"{file}: {key}",
                    repr(getattr(it, key)),
                    f'{_listed(accepted)} with recipe = "{it.recipe}" {at}',
                )
        twice = it.forward_format == "e5m2" and (gemm == "fprop" or it.gradient_format == "e5m2")
        if twice and not self.allow_e5m2_e5m2:
            raise ConfigError(
                f"{file}: forward_format",
                '"e5m2"',
                f'"e4m3": no hardware multiplies E5M2 by E5M2 {at}',
            )


def _resolve(plan: PrecisionPlan, site: str, gemm: str) -> GemmPrecision:
    values = dataclasses.asdict(BF16)
    for rule in plan.rules:
        if gemm in rule.only and site_matches(rule.match, site, plan.layers):
            _apply(rule, gemm, values)
    if gemm == "wgrad" and values["recipe"] in ("rowwise_gw_hp", "rowwise_with_gw_hp"):
        values["fp8"] = False
    return GemmPrecision(**values)


def _apply(rule: PlanRule, gemm: str, values: dict[str, Any]) -> None:
    if value := rule.gemm_value(gemm):
        values["fp8"] = value == "fp8"
    if recipe := rule.keys.get("recipe"):
        hybrid = recipe in ("current", "delayed", "tensorwise")
        values |= {
            "recipe": recipe,
            "forward_format": "e4m3",
            "gradient_format": "e5m2" if hybrid else "e4m3",
            "power_of_two": recipe in ("rowwise", "rowwise_gw_hp", "block"),
            "mx_scale": "up",
        }
    for key in values:
        if key in rule.keys:
            values[key] = rule.keys[key]


class _Parser:
    """Reads a plan; every mistake is a ConfigError with the place of its rule."""

    def __init__(self, text: str, file: str) -> None:
        self._file = file
        self._lines = [
            number
            for number, line in enumerate(text.splitlines(), 1)
            if re.match(r"\s*\[\[\s*rule\s*\]\]", line)
        ]
        try:
            self._document: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(file, "not TOML", str(error)) from None

    def plan(self) -> PrecisionPlan:
        document = self._document
        flags = ("allow_e5m2_e5m2", "allow_ragged_tiles", "required")
        self._refuse_unknown(document, ("version", "rule", *flags), self._file)
        version = document.get("version", 0)
        if type(version) is not int or version < -1:
            raise ConfigError(f"{self._file}: version", repr(version), "a whole number from 0 on")
        for flag in flags:
            if not isinstance(document.get(flag, False), bool):
                raise ConfigError(f"{self._file}: {flag}", repr(document[flag]), "true or false")
        tables = document.get("rule", [])
        if not isinstance(tables, list) or not all(isinstance(it, dict) for it in tables):
            raise ConfigError(f"{self._file}: rule", repr(tables)[:80], "tables, each [[rule]]")
        rules = tuple(self._rule(table, i) for i, table in enumerate(tables))
        return PrecisionPlan(
            rules, version, **{flag: bool(document.get(flag, False)) for flag in flags}
        )

    def _rule(self, table: dict[str, Any], index: int) -> PlanRule:
        line = self._lines[index] if index < len(self._lines) else 0
        place = f"{self._file}:{line}: rule"
        self._refuse_unknown(table, ("match", "only", "power_of_two", *_CHOICES, *_RANGES), place)
        match = table.get("match")
        if not isinstance(match, str) or glob_error(match):
            why = f" ({glob_error(match)})" if isinstance(match, str) else ""
            raise ConfigError(
                f"{place}.match", repr(match), f'a glob like "model.layers.{{0,last}}.*"{why}'
            )
        only = table.get("only", list(GEMMS))
        if not isinstance(only, list) or not only or any(each not in GEMMS for each in only):
            raise ConfigError(f"{place}.only", repr(only), "a list of " + _listed(GEMMS))
        keys = {key: value for key, value in table.items() if key not in ("match", "only")}
        for key, value in keys.items():
            self._check_value(key, value, f"{place}.{key}")
        rule = PlanRule(match, tuple(gemm for gemm in GEMMS if gemm in only), keys, line)
        self._check_rule(rule, place)
        return rule

    @staticmethod
    def _check_value(key: str, value: Any, place: str) -> None:
        if key in _CHOICES and value not in _CHOICES[key]:
            raise ConfigError(place, repr(value), _listed(_CHOICES[key]))
        if key == "power_of_two" and not isinstance(value, bool):
            raise ConfigError(place, repr(value), "true or false")
        if key in _RANGES:
            low, high = _RANGES[key]
            if type(value) is not int or not low <= value <= high:
                raise ConfigError(place, repr(value), f"a whole number, {low} to {high}")
        if key == "promote_every" and value % 32 != 0:
            raise ConfigError(place, repr(value), "a multiple of 32, or 0 for never")

    @staticmethod
    def _check_rule(rule: PlanRule, place: str) -> None:
        for gemm in GEMMS:
            if gemm in rule.keys and gemm not in rule.only:
                accepted = f"no such key: by its `only`, this rule is not about {gemm}"
                raise ConfigError(f"{place}.{gemm}", repr(rule.keys[gemm]), accepted)
        if rule.match != "*" and any(key in rule.keys for key in _RUN_KEYS):
            accepted = '"*" in a rule about moments or communication: they are of the whole run'
            raise ConfigError(f"{place}.match", repr(rule.match), accepted)
        if rule.keys.get("recipe") == "rowwise_gw_hp" and rule.keys.get("wgrad") == "fp8":
            accepted = '"bf16", or no such key: this recipe keeps wgrad in BF16'
            raise ConfigError(f"{place}.wgrad", '"fp8"', accepted)

    @staticmethod
    def _refuse_unknown(table: dict[str, Any], known: tuple[str, ...], place: str) -> None:
        for key in table:
            if key not in known:
                raise ConfigError(f"{place}.{key}", "an unknown key", "one of " + ", ".join(known))


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    # A TOML basic string has JSON's escapes.
    return json.dumps(value) if isinstance(value, str) else str(value)


def _listed(values: Sequence[str]) -> str:
    return ", ".join(f'"{value}"' for value in values)


def _some(sites: Sequence[str], shown: int = 4) -> str:
    text = ", ".join(sites[:shown])
    return f"{text}, ... ({len(sites)} sites)" if len(sites) > shown else text or "(none)"
