"""The meaning of every instruction, one file per concept. Importing this package registers all handlers."""

from . import calls, containers, control, exceptions, names, operators, stack
