"""Drop-in replacements: the public API of other libraries on top of raymine. A program only changes one import."""
