"""``python -m fairseq_lnplace`` is the ``lnplace`` command."""

import sys

from fairseq_lnplace.cli import main

if __name__ == "__main__":
    sys.exit(main())
