"""How the kernels' most frequent steps become LLVM code: elements of arrays, and arithmetic on 64-bit integers.

numba lowers them through its general machinery (views, negative indices, every layout and type): most of the time that
compiling takes, and most of the code. Here an element of a contiguous array is two loads and one comparison, and the
sum of two integers an instruction. Indices are checked without exception, and a negative one is out of bounds: it does
not count from the end. Everything else is left to numba.
"""

from __future__ import annotations

import operator
from typing import Any

from numba.core import types as known_types
from numba.core.compiler_machinery import register_pass
from numba.core.lowering import Lower
from numba.core.typed_passes import NativeLowering
from numba.np.arrayobj import load_item, store_item

types: Any = known_types

_ARITHMETIC = {
    operator.add: "add", operator.sub: "sub", operator.mul: "mul",
    operator.and_: "and_", operator.or_: "or_", operator.xor: "xor",
    operator.lshift: "shl", operator.rshift: "ashr",
    operator.iadd: "add", operator.isub: "sub", operator.imul: "mul",
    operator.iand: "and_", operator.ior: "or_", operator.ixor: "xor",
    operator.ilshift: "shl", operator.irshift: "ashr",
}  # fmt: skip
_COMPARED = {
    operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
}  # fmt: skip
_SHIFTS = ("shl", "ashr")


class _LeanLower(Lower):
    """numba's lowering of one function, with short ways for what the kernels do most."""

    _outside: Any = None

    def lower_getitem(self, resty: Any, expr: Any, value: Any, index: Any, signature: Any) -> Any:
        """`array[i]` and `array[i, j]`."""
        kind = self.typeof(value.name)
        place = self._place(kind, value, index)
        if place is None:
            return super().lower_getitem(resty, expr, value, index, signature)
        found = load_item(self.context, self.builder, kind, place)
        return self.context.cast(self.builder, found, kind.dtype, resty)

    def lower_setitem(self, target_var: Any, index_var: Any, value_var: Any, signature: Any) -> Any:
        """`array[i] = value` and `array[i, j] = value`."""
        kind = self.typeof(target_var.name)
        given = self.typeof(value_var.name)
        simple = isinstance(given, types.Number | types.Boolean) or (
            isinstance(kind, types.Array) and given == kind.dtype
        )
        place = self._place(kind, target_var, index_var) if simple else None
        if place is None:
            return super().lower_setitem(target_var, index_var, value_var, signature)
        value = self.context.cast(self.builder, self.loadvar(value_var.name), given, kind.dtype)
        store_item(self.context, self.builder, kind, value, place)
        return None

    def lower_binop(self, resty: Any, expr: Any, op: Any) -> Any:
        """Arithmetic and comparisons of 64-bit integers, with numba's types: sums wrap around."""
        signature = self.fndesc.calltypes[expr]
        a, b = signature.args
        result = signature.return_type
        build: Any = self.builder
        made = None
        if a == types.int64 and result == types.int64 and (name := _ARITHMETIC.get(op)) is not None:
            if b == types.int64 or (b == types.uint64 and name in _SHIFTS):
                made = getattr(build, name)(self._operand(expr.lhs, a), self._operand(expr.rhs, b))
        elif a == b == types.int64 and result == types.boolean and (sign := _COMPARED.get(op)) is not None:
            made = build.icmp_signed(sign, self._operand(expr.lhs, a), self._operand(expr.rhs, b))
        if made is None:
            return super().lower_binop(resty, expr, op)
        return self.context.cast(build, made, result, resty)

    def _operand(self, var: Any, kind: Any) -> Any:
        return self.context.cast(self.builder, self.loadvar(var.name), self.typeof(var.name), kind)

    def _place(self, kind: Any, array: Any, index: Any) -> Any:
        """Pointer to an element, after its index was checked; None: numba's own way has to do it."""
        if not isinstance(kind, types.Array) or kind.layout != "C" or not isinstance(kind.dtype, _PLAIN):
            return None
        indices = self._indices(index, kind.ndim)
        if indices is None:
            return None
        data, *sizes = self._parts(kind, array.name)
        build: Any = self.builder
        place = None
        for i, size in zip(indices, sizes, strict=True):
            inside = build.icmp_unsigned("<", i, size)
            following = build.append_basic_block("inside")
            build.cbranch(inside, following, self._raising())
            build.position_at_end(following)
            place = i if place is None else build.add(build.mul(place, size), i)
        return build.gep(data, [place], inbounds=True)

    def _indices(self, index: Any, count: int) -> list[Any] | None:
        """The indices as words; None where they are no integers."""
        kind = self.typeof(index.name)
        kinds = list(kind.types) if isinstance(kind, types.BaseTuple) else [kind]
        if len(kinds) != count or not all(isinstance(one, types.Integer | types.IntEnumMember) for one in kinds):
            return None
        kinds = [one.dtype if isinstance(one, types.IntEnumMember) else one for one in kinds]
        value = self.loadvar(index.name)
        if isinstance(kind, types.BaseTuple):
            values = [self.builder.extract_value(value, i) for i in range(count)]
        else:
            values = [value]
        wide = [types.int64 if one.signed else types.uint64 for one in kinds]
        return [
            self.context.cast(self.builder, one, types.unliteral(known), word)
            for one, known, word in zip(values, kinds, wide, strict=True)
        ]

    def _parts(self, kind: Any, name: str) -> list[Any]:
        """Pointer to the elements, then the size of each dimension."""
        build: Any = self.builder
        model = self.context.data_model_manager[kind]
        data, shape = (model.get_field_position(field) for field in ("data", "shape"))
        if name in self._blk_local_varmap:
            whole = self.loadvar(name)
            return [
                build.extract_value(whole, data),
                *(build.extract_value(whole, [shape, i]) for i in range(kind.ndim)),
            ]
        pointer = self.getvar(name)
        word = self.context.get_value_type(types.int32)
        at = [[word(0), word(data)], *([word(0), word(shape), word(i)] for i in range(kind.ndim))]
        return [build.load(build.gep(pointer, one, inbounds=True)) for one in at]

    def _raising(self) -> Any:
        """The block that raises IndexError, one for the function."""
        if self._outside is None:
            self._outside = self.builder.append_basic_block("outside")
            with self.builder.goto_block(self._outside):
                self.context.call_conv.return_user_exc(self.builder, IndexError, ("index is out of bounds",))
        return self._outside


_PLAIN = (types.Integer, types.Float, types.Boolean, types.Record)


@register_pass(mutates_CFG=True, analysis_only=False)
class LeanLowering(NativeLowering):
    """numba's pass, with that lowering."""

    _name = "kdissect_lowering"

    @property
    def lowering_class(self) -> Any:
        """The class that lowers a function."""
        return _LeanLower
