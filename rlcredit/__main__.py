"""What there is to choose from, and a credit rule of your own: to start one, and to check it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import jax

from rlcredit import credit, survey
from rlcredit.advantages import ADVANTAGES
from rlcredit.catalogue import as_markdown, as_text, catalogue
from rlcredit.evidence import EVIDENCE
from rlcredit.new_advantage import add_to_checkout, write_here
from rlcredit.survey.method import GRANULARITIES, METHODOLOGIES, NEEDS, REGIMES
from rlcredit.testing import card, check_advantage
from rlcredit.testing.properties import DEVICES
from rlcredit.types import InputError


def main(arguments: list[str] | None = None) -> None:
    options = _parser().parse_args(arguments)
    try:
        status = options.command(options)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        status = 2
    if status:
        sys.exit(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rlcredit", description=__doc__)
    commands = parser.add_subparsers(required=True)

    listing = commands.add_parser("list", help="credit rules, losses, reducers, evidence, tasks")
    form = listing.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as one JSON object")
    form.add_argument("--markdown", action="store_true", help="as the tables of the README")
    listing.set_defaults(command=_list)

    check = commands.add_parser("check", help="try a credit rule for what every rule is held to")
    check.add_argument("rule", help="a name in the list, or module:function")
    check.add_argument("--advantage-kwargs", nargs="*", default=[], metavar="NAME=VALUE")
    check.add_argument("--json", action="store_true", help="as one JSON object")
    check.add_argument(
        "--oracle", action="store_true", help="also its report card: bias, variance, price, ..."
    )
    check.set_defaults(command=_check)

    new = commands.add_parser("new-advantage", help="write a credit rule to start from")
    new.add_argument("name")
    new.add_argument("--here", action="store_true", help="in this folder, not in a checkout")
    new.set_defaults(command=_new_advantage)
    _add_survey(commands)
    return parser


def _add_survey(commands: argparse._SubParsersAction) -> None:
    inventory = commands.add_parser("survey", help="published methods, and which of them are here")
    form = inventory.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as one JSON list")
    form.add_argument("--markdown", action="store_true", help="as the table of the README")
    one_of = {"granularity": GRANULARITIES, "methodology": METHODOLOGIES, "regime": REGIMES}
    for name, words in one_of.items():
        inventory.add_argument(f"--{name}", metavar="WORD", help=f"one of {', '.join(words)}")
    inventory.add_argument(
        "--needs",
        metavar="WORD,...",
        help="what you have: methods stay whose needs are all among these; "
        f"of {', '.join(NEEDS)}; '' for methods that need nothing more",
    )
    inventory.add_argument(
        "--implemented", action="store_true", help="only what has a rule, loss or evidence here"
    )
    inventory.set_defaults(command=_survey)


def _list(options: argparse.Namespace) -> int:
    entries = catalogue()
    form = as_markdown if options.markdown else as_text
    print(json.dumps(entries, indent=2) if options.json else form(entries))
    return 0


def _survey(options: argparse.Namespace) -> int:
    needs = None
    if options.needs is not None:
        needs = [need.strip() for need in options.needs.split(",") if need.strip()]
    methods = survey.select(
        survey.METHODS,
        granularity=options.granularity,
        methodology=options.methodology,
        regime=options.regime,
        needs=needs,
        implemented=options.implemented,
    )
    form = survey.as_json if options.json else survey.as_text
    print((survey.as_markdown if options.markdown else form)(methods))
    return 0


def _check(options: argparse.Namespace) -> int:
    """0 if nothing failed, else 1; on the CPU, where sums of one order are equal bit for bit."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", DEVICES)
    function = credit.resolve(options.rule, ADVANTAGES, "advantage")
    asked = credit.signature(function)[0]
    bound = credit.from_flags(
        options.rule, ADVANTAGES, "advantage", tuple(options.advantage_kwargs), dict.fromkeys(asked)
    )
    for name in (name for name in asked if name not in EVIDENCE):
        print(f"evidence {name!r} is not in the list: random numbers stand for it", file=sys.stderr)
    findings = check_advantage(bound.function, name=options.rule)
    pairs = tuple(options.advantage_kwargs)
    row = card.report_card(options.rule, pairs) if options.oracle else None
    passed = all(finding.outcome != "failed" for finding in findings)
    if options.json:
        shown = [finding._asdict() for finding in findings]
        whole = {"rule": options.rule, "passed": passed, "findings": shown}
        print(json.dumps(whole | ({"card": row} if row else {}), indent=2))
    else:
        lines = [f"{f.outcome:12} {f.property:18} {f.detail}".rstrip() for f in findings]
        print("\n".join([*lines, *([card.as_text(row)] if row else [])]))
    return 0 if passed else 1


def _new_advantage(options: argparse.Namespace) -> int:
    write = write_here if options.here else add_to_checkout
    print(write(options.name, Path.cwd()))
    return 0


if __name__ == "__main__":
    main()
