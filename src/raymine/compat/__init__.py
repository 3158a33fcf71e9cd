"""Drop-ins: the public names of other libraries on top of raymine, so that a program changes one import."""
