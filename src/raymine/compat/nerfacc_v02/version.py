"""The version of nerfacc whose API this package has."""

__version__ = "0.2.4"
