"""The version of nerfacc whose API this package has."""

__version__ = "0.5.3"
