"""``lnplace evaluate``: translate, score, and write down what was scored and how."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import fields
from pathlib import Path

HELP = "translate a split with a checkpoint and score it: sacreBLEU's BLEU and chrF, and tokenised BLEU"
EXAMPLE = "lnplace evaluate --checkpoint runs/preln/checkpoint_best.pt --data data/prepared/demo"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the checkpoint, the data, fairseq-generate's options for the search, and the outputs."""
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="FILE", help="of any translation model")
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="folder that `lnplace prepare` made")
    parser.add_argument("--gen-subset", default="test", metavar="SPLIT", help="split to translate")
    parser.add_argument("--references", type=Path, metavar="FILE", help="raw text instead of DIR/raw/SPLIT.TARGET")
    parser.add_argument("--beam", type=int, default=5, metavar="N", help="hypotheses that are kept")
    parser.add_argument("--lenpen", type=float, default=1.0, help="length penalty; below 1 favours shorter ones")
    parser.add_argument("--max-len-a", type=float, default=1.2, metavar="A", help="at most A * source + B pieces")
    parser.add_argument("--max-len-b", type=int, default=10, metavar="B", help="see --max-len-a")
    parser.add_argument("--max-tokens", type=int, default=4096, metavar="N", help="pieces in a batch, with padding")
    parser.add_argument("--batch-size", type=int, metavar="N", help="sentences in a batch, at most")
    parser.add_argument("--cpu", action="store_true", help="use no GPU")
    parser.add_argument("--compound-split", action="store_true", help="split hyphens for tokenised BLEU (WMT14 En-De)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="record; default CHECKPOINT.SPLIT.json")
    parser.add_argument("--json", action="store_true", help="print the record instead of a summary")


def run(args: argparse.Namespace) -> None:
    """Evaluate, write the record and the translations beside it, print the scores."""
    from fairseq_lnplace.errors import must_be
    from fairseq_lnplace.evaluation import Decoding, evaluate  # imports torch and sacrebleu
    from fairseq_lnplace.files import new_file, write_json

    output = args.output or args.checkpoint.with_suffix(f".{args.gen_subset}.json")
    if output.suffix != ".json":
        raise must_be("--output", "a file whose name ends in .json", output)
    decoding = Decoding(**{field.name: getattr(args, field.name) for field in fields(Decoding)})
    record, translations = evaluate(
        args.checkpoint, args.data, args.gen_subset, decoding, args.references, args.compound_split
    )
    text = output.with_suffix(f".{record['target_lang']}")
    with new_file(text) as partial:
        partial.write_text("".join(f"{line}\n" for line in translations), encoding="utf-8")
    record |= {"translations": str(text), "command": shlex.join(["lnplace", *sys.argv[1:]])}
    write_json(output, record)
    if args.json:
        print(json.dumps(record, indent=2, ensure_ascii=False))
        return
    tokenised = "tokenised BLEU" + (", compounds split" if args.compound_split else "")
    for name, label in (("bleu", "BLEU"), ("chrf", "chrF"), ("tokenised_bleu", tokenised)):
        print(f"{label} {record[name]['score']:.2f}  {record[name]['signature']}")
    model = ", ".join(f"{key} {value}" for key, value in record["model"].items())
    print(f"{record['sentences']} sentences of {args.gen_subset}; {model}; {record['seconds']} s; {output}")
