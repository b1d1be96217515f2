"""The version of this installation."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("keyframe")
except PackageNotFoundError:  # a tree that was never installed
    VERSION = "0.0.0"
