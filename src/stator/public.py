"""The public names of the package. Importing this file imports every stage of the compiler."""

from stator.api import compile as compile
from stator.api import reset as reset
from stator.backends import list_backends as list_backends
from stator.backends import register_backend as register_backend
from stator.base.errors import CompileError as CompileError
from stator.base.errors import MissingToolchain as MissingToolchain
from stator.base.errors import RecompileError as RecompileError
from stator.base.errors import StatorError as StatorError
from stator.base.errors import Unsupported as Unsupported
from stator.base.errors import UsageError as UsageError
from stator.control import allow_in_graph as allow_in_graph
from stator.control import assert_no_recompile as assert_no_recompile
from stator.control import assume_constant_result as assume_constant_result
from stator.control import disable as disable
from stator.control import graph_break as graph_break
from stator.control import set_stance as set_stance
from stator.control import substitute_in_graph as substitute_in_graph
from stator.dynamo.host.compile_status import is_compiling as is_compiling
from stator.dynamo.host.debuggers import cover_lines as cover_lines
from stator.tools.decompose import decompose as decompose
from stator.tools.explain import Explanation as Explanation
from stator.tools.explain import explain as explain
