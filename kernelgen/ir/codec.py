"""Owns the JSON form of blocks, so that a kernel's sub-graph can travel in a file."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Union, get_args, get_origin

from kernelgen.core.dtypes import DType, dtype
from kernelgen.core.jsonio import JsonValue, json_kind
from kernelgen.core.typehints import field_types
from kernelgen.formats import element_type
from kernelgen.ir.expr import Expr
from kernelgen.ir.graph import Block, Node, Role, Value
from kernelgen.ir.op import Op
from kernelgen.ir.types import Dim, Type
from kernelgen.ir.verify import GraphError, verify_block


def block_to_json(block: Block) -> dict[str, JsonValue]:
    """JSON data of a block; ops by kind, dtypes by name, expressions as nested lists."""
    return {
        "name": block.name,
        "values": [
            {"name": v.name, "role": v.role.value, **type_to_json(v.type)} for v in block.values
        ],
        "nodes": [
            {
                "name": n.name,
                "op": op_to_json(n.op),
                "inputs": list(n.inputs),
                "outputs": list(n.outputs),
            }
            for n in block.nodes
        ],
        "results": [list(pair) for pair in block.results],
    }


def block_from_json(data: JsonValue, kinds: Mapping[str, type[Op]]) -> Block:
    """The inverse, verified; `kinds` are the ops by kind. `GraphError` for anything that is off."""
    try:
        block = _block(data, kinds)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise GraphError(f"not the JSON form of a block: {error!r}") from error
    verify_block(block)
    return block


def type_to_json(type_: Type) -> dict[str, JsonValue]:
    """`{"shape": ["T", 64], "dtype": "float32"}`"""
    return {"shape": [str(d) if isinstance(d, Dim) else d for d in type_.shape],
            "dtype": type_.dtype.name}  # fmt: skip


def type_from_json(data: Mapping[str, Any]) -> Type:
    """The inverse of `type_to_json`."""
    return Type(tuple(_dim(d) for d in data["shape"]), element_type(data["dtype"]))


def op_to_json(op: Op) -> dict[str, JsonValue]:
    """Kind and compile-time attributes."""
    return {"kind": op.kind, **{f.name: _encode(getattr(op, f.name)) for f in _op_fields(op)}}


def op_from_json(data: Mapping[str, Any], kinds: Mapping[str, type[Op]]) -> Op:
    """The inverse of `op_to_json`; attributes are checked against the types of the op's fields."""
    cls = kinds[data["kind"]]
    hints = field_types(cls)
    names = [f.name for f in _op_fields(cls)]
    if set(data) != {"kind", *names}:
        raise ValueError(f"{cls.kind} has the attributes {names}, not {sorted(set(data))}")
    return cls(**{name: _decode(hints[name], data[name]) for name in names})


def _op_fields(op: Op | type[Op]) -> Sequence[Any]:
    return fields(op)  # type: ignore[arg-type]  # every op is a dataclass


def _block(data: Any, kinds: Mapping[str, type[Op]]) -> Block:
    values = tuple(
        Value(_text(v["name"]), type_from_json(v), Role(v["role"])) for v in data["values"]
    )
    nodes = tuple(
        Node(_text(n["name"]), op_from_json(n["op"], kinds), _texts(n["inputs"]),
             _texts(n["outputs"]))
        for n in data["nodes"]
    )  # fmt: skip
    results = tuple((_text(stream), _text(name)) for stream, name in data["results"])
    return Block(_text(data["name"]), values, nodes, results)


def _encode(value: Any) -> Any:
    if isinstance(value, DType):
        return value.name
    if isinstance(value, Expr):
        return value.to_json()
    return list(value) if isinstance(value, tuple) else value


def _decode(hint: Any, value: Any) -> Any:
    if hint is DType:
        return dtype(_text(value))
    if hint is Expr:
        return Expr.from_json(value)
    if get_origin(hint) is tuple:
        return tuple(_decode(get_args(hint)[0], item) for item in value)
    if get_origin(hint) in (Union, types.UnionType):
        return None if value is None else _decode(get_args(hint)[0], value)
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise TypeError(f"{json_kind(value)} where {hint.__name__} belongs")
    return value


def _dim(value: Any) -> int | Dim:
    if type(value) is int and value > 0:
        return value
    return Dim(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{json_kind(value)} where a name belongs")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(_text(v) for v in values)
