"""Installs the package and its `fairseq_lnplace.pth`, which repairs fairseq when it is imported (see `startup.py`)."""

import os
import re
import sys
import sysconfig
from pathlib import Path

from setuptools import Distribution, find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "fairseq_lnplace" / "__init__.py").read_text("utf-8"))

# Data files reach a wheel's and an editable install's site-packages alike. Their place is given from the environment's
# root, so it holds for this Python alone, and the wheel's tag says so.
SITE_PACKAGES = os.path.relpath(sysconfig.get_path("purelib"), sysconfig.get_path("data"))


class WithDataFiles(Distribution):
    """setuptools' editable install asks for `has_data`, a name that distutils never had, and skips the data files."""

    has_data = Distribution.has_data_files


setup(
    distclass=WithDataFiles,
    name="fairseq_lnplace",
    version=VERSION and VERSION[1],
    description="Where normalisation stands in a Transformer, and what that does to training: a fairseq plugin",
    long_description=(HERE / "README.md").read_text("utf-8") if (HERE / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.10,<3.14",
    packages=find_packages(include=["fairseq_lnplace", "fairseq_lnplace.*"]),
    # Named, so that an editable install is one line with this folder's path: cheaper at start than an import finder.
    package_dir={"": "."},
    package_data={"fairseq_lnplace": ["py.typed", "fairseq_lnplace.pth", "*/*.yaml", "report/*.jinja"]},
    data_files=[(SITE_PACKAGES, ["fairseq_lnplace/fairseq_lnplace.pth"])],
    entry_points={"console_scripts": ["lnplace=fairseq_lnplace.cli:main"]},
    options={"bdist_wheel": {"python_tag": f"cp{sys.version_info.major}{sys.version_info.minor}"}},
)
