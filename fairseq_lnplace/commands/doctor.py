"""`lnplace doctor`: is everything there that training needs, and if not, what mends it?"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from fairseq_lnplace.doctor import examine
from fairseq_lnplace.errors import LnplaceError

HELP = "check Python, torch, fairseq, the hook, the compiler, the GPU, the disk and the plugin; say what mends a fault"
EXAMPLE = "lnplace doctor --json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the option for machines."""
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(args: argparse.Namespace) -> None:
    """Print one line per check, and the remedy below each fault.

    Raises:
        LnplaceError: at least one check found a fault.
    """
    findings = examine()
    if args.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            print(f"{'ok' if finding.ok else 'fault':<6} {finding.check:<13} {finding.found}")
            if finding.remedy:
                print(f"{'':<20} mend it with: {finding.remedy}")
    faults = [finding.check for finding in findings if not finding.ok]
    if faults:
        raise LnplaceError(f"{len(faults)} of {len(findings)} checks found a fault: {', '.join(faults)}")
