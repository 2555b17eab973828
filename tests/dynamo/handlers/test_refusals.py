"""Errors of built-in functions and operators are those of the interpreter in captured code, also for classes with odd
special methods. Nothing here computes tensors, so `keep_empty_graphs` makes capture replace the code.
"""

from __future__ import annotations

import collections  # noqa: F401 - the cases use it
import copy  # noqa: F401
import itertools  # noqa: F401
import operator  # noqa: F401
import re
import sys
import types  # noqa: F401
import warnings
from collections import OrderedDict, defaultdict, deque  # noqa: F401
from typing import Any

import pytest

import stator
from stator.base import config


@pytest.fixture(autouse=True)
def replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "keep_empty_graphs", True)


class A:
    __bool__ = None


class B:
    def __len__(self):
        return 10

    __bool__ = None


class HugeLen:
    def __len__(self):
        return sys.maxsize + 1


class NegLen:
    def __len__(self):
        return -1


class FloatLen:
    def __len__(self):
        return 1.5


class NoneLen:
    def __len__(self):
        return None


class N:
    def __init__(self, s=()):
        self.s = s

    def __iter__(self):
        return self


class X:
    def __init__(self, s=()):
        self.s = s

    def __next__(self):
        raise StopIteration


class NoIter:
    __iter__ = None


class IntIter:
    def __iter__(self):
        return 5


class BC:
    def __contains__(self, o):
        return False


class BC2(BC):
    def __iter__(self):
        while False:
            yield None

    __contains__ = None


class CantCopy:
    def __getattribute__(self, name):
        if name.startswith("__reduce"):
            raise AttributeError(name)
        return object.__getattribute__(self, name)


class BadLen:
    def __iter__(self):
        return iter(range(10))

    def __len__(self):
        raise RuntimeError("hello")


class BadHint:
    def __iter__(self):
        return iter(range(10))

    def __length_hint__(self):
        raise RuntimeError("hello")


class BadMeta(type):
    def __instancecheck__(cls, inst):
        raise ZeroDivisionError

    def __subclasscheck__(cls, inst):
        raise ZeroDivisionError


BM = BadMeta("BM", (), {})


class Proxy:
    def __init__(self, obj):
        self.__obj = obj

    def __getattribute__(self, name):
        if name.startswith("_Proxy__"):
            return object.__getattribute__(self, name)
        else:
            return getattr(self.__obj, name)


class C:
    pass


class W:
    __slots__ = ["__weakref__"]


class D:
    __slots__ = ["__dict__"]


class OS(OrderedDict):
    pass


class FS(frozenset):
    pass


class SS(set):
    pass


class SL(list):
    pass


class NotCallable:
    __call__ = None


class NegIdx:
    def __index__(self):
        return "x"


class BadHash:
    __hash__ = None


_CASES = r"""
bool(A())
bool(B())
not A()
[x for x in [A()] if x]
len(HugeLen())
len(NegLen())
bool(NegLen())
bool(HugeLen())
bool(FloatLen())
len(FloatLen())
len(NoneLen())
len(5)
len()
len([],[])
iter(N())
iter(X())
iter(NoIter())
iter(IntIter())
iter(C())
iter(5, 5)
iter(42)
list(N())
tuple(N())
set(N())
[*N()]
enumerate(N())
enumerate(X())
enumerate(5)
enumerate()
enumerate(N(), 3)
zip(N())
zip([1], X())
zip(5)
map(None, [1])
list(map(None, [1]))
map(str, X())
map(str, N())
map(str)
map()
filter(None, X())
filter(None, N())
filter(None)
reversed(N())
reversed(C())
next(map(10, range(5)))
sum(['a','b'], '')
sum([], '')
sum([], b'')
sum([], bytearray())
sum([b'a'], b'')
sum(5)
sum()
sum([{2:3}])
sum(N())
any(N())
all(X())
min(N())
max(5)
min([])
max()
sorted(N())
sorted(5)
itertools.accumulate(N())
itertools.accumulate(X())
itertools.compress(N(), [1])
itertools.compress([1], N())
itertools.cycle(N())
itertools.cycle(X())
itertools.dropwhile(bool, X())
itertools.dropwhile(bool, N())
itertools.takewhile(bool, X())
itertools.filterfalse(bool, X())
itertools.filterfalse(bool, N())
itertools.groupby(X())
itertools.groupby(N())
itertools.islice(X(), 10)
itertools.islice(N(), 10)
itertools.islice([1], 'a')
itertools.islice([1], -1)
itertools.islice([1], 1, 2, 0)
itertools.islice([1])
itertools.pairwise(X())
itertools.pairwise(N())
itertools.starmap(operator.add, X())
itertools.starmap(operator.add, N())
itertools.tee(X())
itertools.tee(N(), 3)
itertools.tee([1], -1)
itertools.tee([1], 'x')
itertools.zip_longest(X())
itertools.zip_longest(N(), [1])
itertools.zip_longest([1], foo=1)
itertools.count('a')
itertools.count(1, 'a')
itertools.count(1, 2, 3)
itertools.count(None)
itertools.repeat()
itertools.repeat(None, 3, 4)
itertools.repeat(None, 'a')
itertools.repeat(None, 2.5)
itertools.chain.from_iterable(5)
itertools.product(5)
itertools.product(N())
itertools.product([1], repeat='a')
itertools.permutations(5)
itertools.permutations([1], -1)
itertools.permutations([1], 'a')
itertools.combinations(5, 1)
itertools.combinations([1], -1)
itertools.combinations([1])
itertools.combinations_with_replacement([1], -2)
list(itertools.chain(N()))
0 in BC2()
0 in 5
0 in N()
0 not in NoIter()
copy.copy(CantCopy())
copy.deepcopy(CantCopy())
defaultdict(1)
defaultdict(1, {})
defaultdict('a')
defaultdict(NotCallable())
type({}.keys())({})
type({}.items())()
type({}.values())()
isinstance(Proxy(C()), C)
isinstance(Proxy(5), int)
isinstance(Proxy(C()), Proxy)
isinstance(Proxy(C()), (int, C))
isinstance(Proxy(C()), int | C)
hasattr(W(), "__weakref__")
hasattr(W(), "__dict__")
hasattr(D(), "__weakref__")
hasattr(D(), "__dict__")
hasattr(C(), "__weakref__")
getattr(C(), "__weakref__", 3)
hasattr(5, "__dict__")
list(BadLen())
list(BadHint())
tuple(BadHint())
[].extend(BadLen())
[].extend(BadHint())
[1, *BadLen()]
sorted(BadLen())
isinstance([], int | BM)
isinstance(1, int | BM)
isinstance(1, (str, BM))
issubclass(list, BM)
issubclass(list, int | BM)
isinstance(object().__init__, types.MethodWrapperType)
isinstance(object().__str__, types.MethodWrapperType)
isinstance((42).__lt__, types.MethodWrapperType)
isinstance([].append, types.BuiltinFunctionType)
isinstance([].__len__, types.MethodWrapperType)
type([].append)
type([].__len__)
type("".join)
type((1).__add__)
type(list.append)
type(list.__len__)
type(C().__init__)
type(C.__init__)
isinstance(str.join, types.MethodDescriptorType)
isinstance(dict.__dict__['fromkeys'], types.ClassMethodDescriptorType)
type(dict.fromkeys)
type(len)
OrderedDict([('a', 1)], None)
OrderedDict(42)
OrderedDict((), ())
OrderedDict.__init__()
OrderedDict().update((), ())
OrderedDict().update(42)
OrderedDict.update()
OS((), ())
OS(42)
dict((), ())
dict(42)
dict([1])
dict([(1,2,3)])
dict(['ab', 'c'])
{}.update((), ())
{}.update(42)
dict.update()
dict.fromkeys()
dict.fromkeys(5)
FS([], 2)
SS([], 2)
SL([], 2)
set([], 2)
frozenset([], 2)
set().__init__(a=1)
set([[]])
set(5)
list([], 2)
list(a=1)
tuple(a=1)
list(5)
[].append()
[].append(1, 2)
[].pop(1)
[].index(3)
[1].remove(3)
[].insert(1)
{}.pop(1)
{}.pop()
{}.popitem()
{}[1]
{[]: 1}
{}[[]]
[] in {}
[] in set()
{1}.remove(2)
{BadHash()}
{BadHash(): 1}
hash(BadHash())
hash([])
[1][NegIdx()]
[1]['a']
[1][1.0]
(1,)[2]
'abc'[5]
range(3)[5]
range('a')
range(1, 2, 0)
range(1.0)
slice()
NotCallable()()
C()()
5()
C() + 1
C() < C()
-C()
[1] + (1,)
(1,) + [1]
[1] * 'a'
'a' * 'a'
'a' + 1
1 + 'a'
{} | 5
set() | []
{1} - [1]
{1} < [1]
deque([1], maxlen=-1)
deque([1], maxlen='a')
deque(5)
deque().pop()
deque([1]).remove(2)
int('x')
SyntaxError('x', 'y')
int([])
float('x')
chr(-1)
ord('ab')
abs('a')
round('a')
divmod(1, 0)
1 / 0
1 // 0
1 % 0
1.0 / 0
pow(0, -1)
'%d' % 'a'
'%s %s' % 'a'
'{}'.format()
'{a}'.format()
'{:d}'.format('a')
f"{'a':d}"
'a'.join([1])
'a'.join(5)
''.split('')
'a'.index('b')
getattr(C(), 'x')
getattr(C(), 5)
setattr(C(), 5, 1)
delattr(C(), 'x')
object().x
setattr(object(), 'x', 1)
isinstance(1, 5)
isinstance(1, (int, 5))
isinstance('a', (int, 5))
issubclass(1, int)
issubclass(int, 5)
callable()
next([])
next(iter([]))
next(iter([]), 3)
next(C())
type(1, 2)
super(int, 'a').x
object(1)
C(1)
int.__new__()
object.__new__(1)
object.__new__(C, 1)
object.__new__(int)
list.__new__(int)
list.append(5, 1)
list.append()
str.join(5, [])
dict.get({})
vars(5)
id()
operator.getitem([], 0)
operator.is_()
operator.add(1)
operator.attrgetter()
operator.attrgetter(5)
operator.itemgetter()
operator.itemgetter(1)([])
operator.methodcaller()
__import__(1, 2, 3, 4)
__import__('spamspam')
__import__('')
__import__('sys', name='sys')
__import__('string\\x00')
""".strip().splitlines()


_CODE = """
def asked():
    return {case}

def told(asked=asked):
    try:
        result = asked()
    except Exception as error:
        linked = type(error.__cause__).__name__, type(error.__context__).__name__
        return type(error).__name__, str(error), *linked
    return type(result).__name__
"""


def _shown(told: Any) -> str:
    return re.sub("0x[0-9a-f]+", "0x", repr(told()))


@pytest.mark.parametrize("case", _CASES)
def test_as_the_interpreter(case: str) -> None:
    namespace: dict[str, Any] = dict(globals())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        exec(_CODE.format(case=case), namespace)
    told = namespace["told"]
    expected = _shown(told)
    compiled, leaving = (stator.compile(namespace[name], backend="eager") for name in ("told", "asked"))
    assert [_shown(compiled), _shown(compiled)] == [expected, expected]
    assert _shown(lambda: told(leaving)) == expected
