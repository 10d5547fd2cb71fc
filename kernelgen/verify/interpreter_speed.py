"""Owns what Triton's interpreter remembers: types and patches that it would make at each use.

The interpreter looks through all of Triton's language for what to replace whenever a kernel or a
function is called, and builds the types of shapes anew for each value. Both depend on nothing that
changes; remembered, kernels run twice as fast. What they compute is not touched.
"""

from __future__ import annotations

from typing import Any


def remember(interpreter: Any) -> None:
    """Let the interpreter make each patch, shape and type of elements once for this process."""
    import triton.language as tl

    _remember_patches(interpreter)
    _remember_blocks(tl.core)
    _remember_shapes(tl.core)
    _remember_elements(interpreter, tl)


def _remember_patches(interpreter: Any) -> None:
    """Replacements of the language's functions, found by name instead of by a look at each."""
    plain = interpreter._patch_builtin
    found: dict[Any, list[tuple[str, Any]]] = {}

    def patch(package: Any, builder: Any, scope: Any) -> None:
        known = found.get(package)
        if known is None:
            before = dict(vars(package))
            plain(package, builder, scope)
            after = vars(package)
            found[package] = [(n, v) for n, v in after.items() if before.get(n) is not v]
            return
        current = vars(package)
        for name, made in known:
            if current.get(name) is not made:
                scope.set_attr(package, name, made)

    interpreter._patch_builtin = patch


def _remember_blocks(core: Any) -> None:
    """What a type of blocks says of its shape and its elements."""
    kind = core.block_type
    plain = kind.__init__
    known: dict[Any, dict[str, Any]] = {}

    def init(self: Any, element_ty: Any, shape: Any) -> None:
        key = (type(element_ty), str(element_ty), _numbers(core, shape))
        made = known.get(key)
        if made is None:
            plain(self, element_ty, shape)
            known[key] = {n: v for n, v in vars(self).items() if n != "element_ty"}
            return
        vars(self).update(made)
        self.element_ty = element_ty

    kind.__init__ = init


def _remember_shapes(core: Any) -> None:
    """Constants that a tensor's shape is given in."""
    kind = core.tensor
    plain = kind.__init__
    known: dict[Any, tuple[Any, Any]] = {}

    def init(self: Any, handle: Any, type: Any) -> None:
        key = _numbers(core, type.shape) if type.is_block() else ()
        made = known.get(key)
        if made is None:
            plain(self, handle, type)
            known[key] = (self.shape, self.numel)
            return
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = made

    kind.__init__ = init


def _remember_elements(interpreter: Any, tl: Any) -> None:
    """The numpy type of elements."""
    plain = interpreter._get_np_dtype
    known: dict[str, Any] = {}

    def found(kind: Any) -> Any:
        scalar = kind.element_ty if isinstance(kind, tl.block_type) else kind
        name = "pointer" if isinstance(scalar, tl.pointer_type) else scalar.name
        if name not in known:
            known[name] = plain(kind)
        return known[name]

    interpreter._get_np_dtype = found


def _numbers(core: Any, shape: Any) -> tuple[int, ...]:
    """A shape in any of the forms that Triton writes it in."""
    return tuple(s.value if isinstance(s, core.constexpr) else s for s in shape)
