"""Graphs that break ONNX's rules: names, order, types, arity, attributes, versions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper

from tests.model.hostile.cases import Case, body, const, model, node, untyped, value

F, I64, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING


def cases() -> Iterator[Case]:
    yield from names()
    yield from types()
    yield from schemas()
    yield from versions()
    yield from control_flow()
    yield from functions()
    yield from tensors()


def names() -> Iterator[Case]:
    yield Case(
        "cycle of two", model([node("Add", "x b", "a"), node("Relu", "a", "b"), node("Relu", "a")]), "BrokenGraph"
    )
    yield Case("node reads itself", model([node("Add", "x y")]), "BrokenGraph")
    long = [node("Add", f"v{i} v{(i + 1) % 3000}", f"v{i + 1}") for i in range(3000)]
    yield Case("cycle of thousands", model([*long, node("Relu", "v1")]), "InvalidGraph")
    yield Case("dangling input", model(node("Relu", "nobody")), "DanglingName")
    yield Case("dangling output", model(node("Relu", "x", "z")), "BrokenGraph")
    yield Case("output defined twice", model([node("Relu", "x"), node("Abs", "x")]), "BrokenGraph")
    yield Case("output twice in a node", model([node("Dropout", "x", "y y")]), "BrokenGraph")
    yield Case("node defines an input", model([node("Relu", "x", "x"), node("Relu", "x")]), "BrokenGraph")
    yield Case(
        "node defines an initializer",
        model([node("Relu", "x", "c"), node("Add", "x c")], const("c", [1.0])),
        "BrokenGraph",
    )
    two = [value("x", F, [2])] * 2
    yield Case("two inputs of one name", model(node("Relu", "x"), inputs=two), "BrokenGraph")
    yield Case("input without name", model(node("Relu", "x"), inputs=[value("x", F, [2]), value("", F)]), "BrokenGraph")
    yield Case("initializer without name", model(node("Relu", "x"), const("", [1.0])), "BrokenGraph")
    yield Case("two initializers of one name", model(node("Add", "x c"), const("c", [1.0]), const("c", [2.0])), None)
    yield Case("no outputs at all", model(node("Relu", "x"), outputs=[]), None)
    yield Case("output listed twice", model(node("Relu", "x"), outputs=[untyped(), untyped()]), None)
    yield Case("no nodes, output is input", model([], outputs=[value("x", F, [2])]), None)
    yield Case("no graph name", _edit(lambda m: m.graph.ClearField("name")), None)
    yield Case("empty operator", model(node("", "x")), "InvalidGraph")
    yield Case("unknown operator", model(node("Bogus", "x")), "InvalidGraph")
    yield Case("unknown domain", model(node("Bogus", "x", domain="who.knows"), imports={"who.knows": 1}))
    yield Case("domain not imported", model(node("Bogus", "x", domain="who.knows")))
    yield Case("unknown com.microsoft operator", model(node("Bogus", "x", domain="com.microsoft")))
    yield Case("unknown operator in a branch", model(_if(then=[node("Bogus", "x", "t")]), _true()), "InvalidGraph")
    for field, at in (("op_type", "Relu"), ("output name", "y"), ("input name", "x")):
        broken = model(node("Relu", "x")).SerializeToString().replace(at.encode(), b"\xff" * len(at))
        yield Case(f"{field} is not UTF-8", broken)
    yield Case("name is not UTF-8", _text("name"), "InvalidProtobuf")
    yield Case(
        "attribute name is not UTF-8",
        _bytes(model(node("LeakyRelu", "x", alpha=0.5)), b"alpha", b"\xffl\xfeha"),
        "InvalidProtobuf",
    )
    yield Case(
        "dimension name is not UTF-8",
        _bytes(model(node("Relu", "x"), inputs=[value("x", F, ["DIMENS"])]), b"DIMENS", b"\xff\xfeMENS"),
        "InvalidProtobuf",
    )
    yield Case("domain is not UTF-8", _bytes(model(node("Relu", "x", domain="DOMAIN")), b"DOMAIN", b"\xff\xfeMAIN"))
    yield Case("name of a megabyte", model([node("Relu", "x", "n" * 1_000_000), node("Relu", "n" * 1_000_000)]), None)
    yield Case(
        "thousands of unused inputs",
        model(node("Relu", "x"), inputs=[value(n, F, [2]) for n in ["x", *map(str, range(5000))]]),
        None,
    )


def types() -> Iterator[Case]:
    yield Case("float to Not", model(node("Not", "x"), outputs=[untyped()]), "InvalidGraph")
    yield Case("mixed types", model(node("Add", "x c"), const("c", [1, 2])), "InvalidGraph")
    yield Case("wrong output type", model(node("Relu", "x"), outputs=[value("y", I64, [2])]), "InvalidGraph")
    yield Case("unknown output element type", model(node("Relu", "x"), outputs=[value("y", 99, [2])]), "InvalidGraph")
    yield Case("unknown input element type", model(node("Relu", "x"), inputs=[value("x", 99, [2])]), "InvalidGraph")
    yield Case("input without type", model(node("Relu", "x"), inputs=[onnx.ValueInfoProto(name="x")]), "BrokenGraph")
    yield Case("wrong output shape", model(node("Relu", "x"), outputs=[value("y", F, [7])]), None)
    yield Case("wrong output rank", model(node("Relu", "x"), outputs=[value("y", F, [7, 7])]), None)
    wrong = model([node("Relu", "x", "a"), node("Relu", "a")])
    wrong.graph.value_info.append(value("a", F, [1 << 40]))
    yield Case("intermediate states an absurd shape", wrong, "runs?")
    yield Case("negative input dimension", model(node("Relu", "x"), inputs=[value("x", F, [-5])]), None)
    yield Case("input of 2^62 elements", model(node("Relu", "x"), inputs=[value("x", F, [1 << 31, 1 << 31])]), "runs?")
    yield Case("input of rank 1000", model(node("Relu", "x"), inputs=[value("x", F, [1] * 1000)]), "InvalidGraph")
    yield Case(
        "sequence where a tensor belongs",
        model([node("SequenceConstruct", "x", "s"), node("Relu", "s")]),
        "InvalidGraph",
    )
    yield Case(
        "tensor where a sequence belongs", model(node("SequenceLength", "x"), outputs=[untyped()]), "InvalidGraph"
    )
    deep = onnx.ValueInfoProto(name="x")
    inner = deep.type
    for _ in range(40):
        inner = inner.sequence_type.elem_type
    inner.tensor_type.elem_type = F
    yield Case(
        "sequences in sequences",
        model(node("SequenceLength", "x"), inputs=[deep], outputs=[untyped()]),
        "runs?",
        {"x": []},
    )
    yield Case("Cast to nowhere", model(node("Cast", "x", to=12345), outputs=[untyped()]))
    yield Case("Cast to negative", model(node("Cast", "x", to=-1), outputs=[untyped()]))
    yield Case(
        "string arithmetic",
        model(node("Add", "c c"), const("c", np.array(["a", "b"], object)), outputs=[untyped()]),
        "InvalidGraph",
    )


def schemas() -> Iterator[Case]:
    bad = {
        "unknown attribute": node("Relu", "x", bogus=1),
        "old attribute in a new opset": node("Relu", "x", consumed_inputs=[0]),
        "string for float": node("LeakyRelu", "x", alpha="half"),
        "int for float": node("LeakyRelu", "x", alpha=1),
        "float for int": node("Softmax", "x", axis=0.5),
        "ints for int": node("Softmax", "x", axis=[0, 1]),
        "tensor for ints": node("Transpose", "x", perm=const("t", [0])),
        "graph for float": node("LeakyRelu", "x", alpha=body([], [], "")),
        "float for graph": node("If", "x", then_branch=1.0, else_branch=2.0),
        "required attribute missing": node("Cast", "x"),
        "required axis missing": node("Concat", "x x"),
        "too few inputs": node("Add", "x"),
        "no inputs": node("Relu", ""),
        "too many inputs": node("Relu", "x x"),
        "too many outputs": node("Relu", "x", "y z"),
        "no outputs": node("Relu", "x", ""),
        "required input left out": node("Add", "x _"),
        "first input left out": node("Clip", "_ x"),
        "first of many inputs left out": node("Concat", "_ x", axis=0),
        "last of many inputs left out": node("Sum", "x _"),
        "operand of a product left out": node("Einsum", "x _", equation="i,i->i"),
        "carried value left out": node(
            "Loop", "_ _ _", body=body([node("Identity", "c", "d")], [untyped(w) for w in ("i", "c", "v")], "d v")
        ),
        "required output left out": node("Relu", "x", "_"),
        "If without else": node("If", "c", then_branch=body([node("Relu", "x", "t")], [], "t")),
        "If without branches": node("If", "c"),
        "Loop without body": node("Loop", "_ c x"),
        "Scan without body": node("Scan", "x", num_scan_inputs=1),
        "Constant without value": node("Constant", ""),
        "Constant with two values": node("Constant", "", value_int=1, value_float=1.0),
        "Split without outputs": node("Split", "x", ""),
    }
    for name, n in bad.items():
        yield Case(
            name, model(n, _true(), outputs=[value("x", F) if "y" not in n.output else untyped()]), "InvalidGraph"
        )
    twice = node("LeakyRelu", "x", alpha=0.5)
    twice.attribute.append(twice.attribute[0])
    yield Case("attribute given twice", model(twice), "InvalidGraph")
    for kind in (0, 77):
        odd = node("LeakyRelu", "x")
        odd.attribute.append(AttributeProto(name="alpha", type=kind) if kind == 0 else _odd_kind(kind))
        yield Case(f"attribute of kind {kind}", model(odd), "InvalidGraph" if kind == 0 else "runs?")
    reference = node("LeakyRelu", "x")
    reference.attribute.append(AttributeProto(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="a"))
    yield Case("attribute refers to a function's", model(reference), "InvalidGraph")
    yield Case("internal attribute", model(node("Relu", "x", __note=1)), None)
    big = {"ints": list(range(1_000_000)), "floats": [0.5] * 1_000_000, "strings": ["s"] * 200_000}
    for kind, many in big.items():
        yield Case(f"unknown attribute of many {kind}", model(node("Relu", "x", bogus=many)), "InvalidGraph")
        yield Case(
            f"Constant of many {kind}",
            model([node("Constant", "", "c", **{f"value_{kind}": many}), node("Relu", "x")]),
            None,
        )
    yield Case("Transpose by a million axes", model(node("Transpose", "x", perm=big["ints"])))
    yield Case(
        "string attribute of 20 MB",
        model([node("Relu", "x"), node("StringConcat", "s s", "z")], const("s", np.array(["s" * 20_000_000], object))),
        None,
    )
    yield Case("twenty thousand inputs", model(node("Sum", " ".join(["x"] * 20_000))), None)
    yield Case(
        "a hundred thousand attributes",
        model(node("Relu", "x", **{f"a{i}": i for i in range(100_000)})),
        "InvalidGraph",
    )


def versions() -> Iterator[Case]:
    for version in (0, -1, 99, 1 << 40, -(1 << 63)):
        yield Case(f"opset {version}", model(node("Relu", "x"), opset=version), "InvalidGraph")
    for version in (99, 1 << 40):
        yield Case(f"IR version {version}", model(node("Relu", "x"), ir=version), "BrokenGraph")
    for version in (0, 1, -1, -(1 << 63)):
        yield Case(f"IR version {version}", model(node("Relu", "x"), ir=version), None)
    yield Case("ai.onnx.ml 99", model(node("Relu", "x"), imports={"ai.onnx.ml": 99}), "BrokenGraph")
    yield Case("no opset imports", _edit(lambda m: m.ClearField("opset_import")), "BrokenGraph")
    yield Case(
        "one domain in two versions", _edit(lambda m: m.opset_import.add(domain="ai.onnx", version=9)), "InvalidGraph"
    )
    yield Case("no IR version", _edit(lambda m: m.ClearField("ir_version")), None)
    yield Case("operator newer than the opset", model(node("Gelu", "x"), opset=13), "InvalidGraph")
    yield Case("operator removed before the opset", model(node("Upsample", "x c"), const("c", [2.0])), "InvalidGraph")
    yield Case("opset 1 form", model(node("Relu", "x", consumed_inputs=[0]), opset=1, ir=3), None)


def control_flow() -> Iterator[Case]:
    true = _true()
    iteration = [value("i", I64, []), value("k", BOOL, [])]
    state = value("s", F)
    keep = node("Identity", "k", "k2")
    loops = {
        "Loop body without states": body([keep], iteration, "k2"),
        "Loop body with a state too many": body(
            [keep, node("Relu", "s", "s2")], [*iteration, state, value("s3", F)], "k2 s2 s3"
        ),
        "Loop body without condition": body([node("Relu", "s", "s2")], [*iteration, state], "s2"),
        "Loop body without outputs": body([keep], [*iteration, state], ""),
        "Loop body without inputs": body([keep], [], "k2"),
        "Loop body reads nothing known": body([keep, node("Relu", "ghost", "s2")], [*iteration, state], "k2 s2"),
        "Loop body's condition is a float": body([node("Relu", "s", "s2")], [*iteration, state], "s2 s2"),
    }
    for name, graph in loops.items():
        yield Case(name, model(node("Loop", "n c x", body=graph), true, const("n", 3)))
    endless = body([keep, node("Relu", "s", "s2")], [*iteration, state], "k2 s2")
    for trips in (1 << 62, (1 << 63) - 1, 1 << 40):
        yield Case(
            f"Loop of {trips} trips", model(node("Loop", "n c x", body=endless), true, const("n", trips)), "OutOfBudget"
        )
    yield Case("Loop for ever", model(node("Loop", "_ c x", body=endless), true), "OutOfBudget")
    yield Case("Loop for ever without condition", model(node("Loop", "_ _ x", body=endless)), "OutOfBudget")
    again = body([node("Not", "k", "a"), node("Not", "a", "k2"), node("Relu", "s", "s2")], [*iteration, state], "k2 s2")
    yield Case(
        "Loop whose condition turns twice",
        model(node("Loop", "n c x", body=again), true, const("n", 1 << 62)),
        "OutOfBudget",
    )
    outer = body([node("And", "k c", "k2"), node("Relu", "s", "s2")], [*iteration, state], "k2 s2")
    yield Case("Loop whose condition is outside", model(node("Loop", "_ c x", body=outer), true), "OutOfBudget")
    yield Case("Loop of negative trips", model(node("Loop", "n c x", body=endless), true, const("n", -5)), None)
    yield Case("Loop with a vector of trips", model(node("Loop", "n c x", body=endless), true, const("n", [1, 2])))
    growing = body([keep, node("Concat", "s s", "s2", axis=0)], [*iteration, state], "k2 s2")
    yield Case(
        "Loop that doubles its state", model(node("Loop", "n c x", body=growing), true, const("n", 60)), "OutOfBudget"
    )
    scans = body([keep, node("Expand", "x shape", "e")], iteration, "k2 e")
    yield Case(
        "Loop that collects without end",
        model(node("Loop", "n c", body=scans), true, const("n", 1 << 20), const("shape", [1 << 10, 2])),
        "OutOfBudget",
    )
    yield Case("If with a vector condition", model(_if("cc"), const("cc", [True, False])))
    yield Case("If with a float condition", model(_if("x")), "InvalidGraph")
    yield Case(
        "If whose branches differ in outputs",
        model(_if(then=[node("Relu", "x", "t"), node("Relu", "x", "u")], outputs="t u"), true),
    )
    yield Case("If branch without outputs", model(_if(outputs=""), true))
    nested = node("Relu", "x")
    for i in range(30):
        nested = node(
            "If",
            "c",
            then_branch=body([_renamed(nested, f"t{i}")], [], f"t{i}"),
            else_branch=body([node("Abs", "x", f"e{i}")], [], f"e{i}"),
        )
    yield Case("If in If in If ...", model(nested, true), "runs?")
    wide = [
        node(
            "If",
            "c",
            f"y{i}",
            then_branch=body([node("Relu", "x", "t")], [], "t"),
            else_branch=body([node("Abs", "x", "e")], [], "e"),
        )
        for i in range(3000)
    ]
    yield Case("thousands of branches", model([*wide, node("Relu", "x")], true), None)
    scan_in = [value("s", F), value("r", F)]
    yield Case(
        "Scan body with a state too few",
        model(node("Scan", "x x", num_scan_inputs=1, body=body([node("Relu", "r", "s2")], scan_in[1:], "s2"))),
    )
    full = body([node("Add", "s r", "s2")], scan_in, "s2")
    yield Case("Scan with num_scan_inputs 9", model(node("Scan", "x x", num_scan_inputs=9, body=full)))
    yield Case("Scan with num_scan_inputs -1", model(node("Scan", "x x", num_scan_inputs=-1, body=full)))
    yield Case("Scan with num_scan_inputs 2^62", model(node("Scan", "x x", num_scan_inputs=1 << 62, body=full)))
    yield Case("Scan axis out of range", model(node("Scan", "x x", num_scan_inputs=1, scan_input_axes=[7], body=full)))
    yield Case("Scan of a scalar", model(node("Scan", "x z", num_scan_inputs=1, body=full), const("z", 1.0)))
    yield Case(
        "SequenceMap over a tensor",
        model(node("SequenceMap", "x", body=body([node("Relu", "r", "s2")], scan_in[1:], "s2")), outputs=[untyped()]),
    )


def functions() -> Iterator[Case]:
    imports = {"f": 1}

    def function(
        name: str, *nodes: onnx.NodeProto, inputs: str = "a", outputs: str = "b", version: int = 21
    ) -> onnx.FunctionProto:
        opsets = [helper.make_opsetid("", version), helper.make_opsetid("f", 1)]
        return helper.make_function("f", name, inputs.split(), outputs.split(), list(nodes), opsets)

    call = node("F0", "x", domain="f")
    yield Case(
        "function calls itself",
        model(call, functions=[function("F0", node("F0", "a", "b", domain="f"))], imports=imports),
        "InvalidGraph",
    )
    ring = [function(f"F{i}", node(f"F{(i + 1) % 5}", "a", "b", domain="f")) for i in range(5)]
    yield Case("functions in a ring", model(call, functions=ring, imports=imports), "InvalidGraph")

    def doubling(levels: int) -> list[onnx.FunctionProto]:
        steps = [node("F{}", "a", "m", domain="f"), node("F{}", "m", "b", domain="f")]
        made = []
        for i in range(levels):
            pair = [_renamed(s, op_type=f"F{i + 1}") for s in steps]
            made.append(function(f"F{i}", *pair))
        return [*made, function(f"F{levels}", node("Relu", "a", "b"))]

    for levels in (10, 30, 60):
        error = None if levels == 10 else "OutOfBudget"
        yield Case(
            f"functions doubling {levels} times", model(call, functions=doubling(levels), imports=imports), error
        )
    chain = [function(f"F{i}", node(f"F{i + 1}", "a", "b", domain="f")) for i in range(3000)]
    yield Case(
        "functions three thousand deep",
        model(call, functions=[*chain, function("F3000", node("Relu", "a", "b"))], imports=imports),
        "OutOfBudget",
    )
    heavy = function(
        "F0", node("Relu", "a", "b"), *[node("Constant", "", f"c{i}", value_string="s" * 1000) for i in range(200)]
    )
    calls = [node("F0", "x", f"y{i}", domain="f") for i in range(3000)]
    yield Case(
        "a heavy function called often",
        model([*calls, node("Relu", "x")], functions=[heavy], imports=imports),
        "OutOfBudget",
    )
    relu = function("F0", node("Relu", "a", "b"))
    yield Case("function defined twice", model(call, functions=[relu, relu], imports=imports), "InvalidGraph")
    yield Case(
        "function output made by nothing",
        model(call, functions=[function("F0", node("Relu", "a", "z"))], imports=imports),
        "InvalidGraph",
    )
    yield Case(
        "function reads nothing known",
        model(call, functions=[function("F0", node("Relu", "ghost", "b"))], imports=imports),
        "InvalidGraph",
    )
    yield Case(
        "function with a cycle",
        model(call, functions=[function("F0", node("Add", "a b", "c"), node("Relu", "c", "b"))], imports=imports),
        "InvalidGraph",
    )
    yield Case(
        "function called with too much", model(node("F0", "x x x", domain="f"), functions=[relu], imports=imports)
    )
    yield Case("function called with nothing", model(node("F0", "", domain="f"), functions=[relu], imports=imports))
    yield Case(
        "function called for too many outputs",
        model(node("F0", "x", "y z", domain="f"), functions=[relu], imports=imports),
    )
    yield Case(
        "function with an unknown operator",
        model(call, functions=[function("F0", node("Bogus", "a", "b"))], imports=imports),
        "InvalidGraph",
    )
    yield Case(
        "function of another opset",
        model(call, functions=[function("F0", node("Relu", "a", "b"), version=13)], imports=imports),
        "runs?",
    )
    yield Case(
        "function of opset 999",
        model(call, functions=[function("F0", node("Relu", "a", "b"), version=999)], imports=imports),
        "runs?",
    )
    many = [function(f"F{i}", node("Relu", "a", "b")) for i in range(10_000)]
    yield Case("ten thousand functions", model(call, functions=many, imports=imports), None)


def tensors() -> Iterator[Case]:
    T = TensorProto

    def stored(**fields: object) -> onnx.ModelProto:
        return model(node("Add", "x c"), T(name="c", **fields))

    broken = {
        "negative dimension": dict(data_type=F, dims=[-2], raw_data=bytes(8)),
        "two negative dimensions": dict(data_type=F, dims=[-1, -2], raw_data=bytes(8)),
        "raw data too short": dict(data_type=F, dims=[2], raw_data=bytes(7)),
        "raw data too long": dict(data_type=F, dims=[2], raw_data=bytes(12)),
        "long raw data too short": dict(data_type=F, dims=[1000], raw_data=bytes(3999)),
        "floats too few": dict(data_type=F, dims=[2], float_data=[1]),
        "floats too many": dict(data_type=F, dims=[2], float_data=[1, 2, 3]),
        "many floats too few": dict(data_type=F, dims=[1000], float_data=[1] * 999),
        "no data": dict(data_type=F, dims=[2]),
        "no data, 2^40 elements": dict(data_type=F, dims=[1 << 40]),
        "no data, 2^62 elements": dict(data_type=F, dims=[1 << 62]),
        "product overflows": dict(data_type=F, dims=[1 << 32, 1 << 32], raw_data=bytes(8)),
        "product overflows to 2": dict(data_type=F, dims=[(1 << 63) - 1, (1 << 63) - 1, 2], raw_data=bytes(8)),
        "nothing times 2^62": dict(data_type=F, dims=[0, 1 << 62]),
        "rank 1000": dict(data_type=F, dims=[1] * 1000, raw_data=bytes(4)),
        "rank 65": dict(data_type=F, dims=[1] * 65, raw_data=bytes(4)),
        "a million dimensions": dict(data_type=F, dims=[1] * 1_000_000, raw_data=bytes(4)),
        "type 0": dict(data_type=0, dims=[2], raw_data=bytes(8)),
        "type 77": dict(data_type=77, dims=[2], raw_data=bytes(8)),
        "type -1": dict(data_type=-1, dims=[2], raw_data=bytes(8)),
        "ints for floats": dict(data_type=F, dims=[2], int64_data=[1, 2]),
        "many ints for floats": dict(data_type=F, dims=[1000], int64_data=[1] * 1000),
        "strings raw": dict(data_type=STRING, dims=[2], raw_data=bytes(8)),
        "strings too few": dict(data_type=STRING, dims=[2], string_data=[b"a"]),
        "strings claimed by 2^40": dict(data_type=STRING, dims=[1 << 40], string_data=[b"a"]),
        "strings as ints": dict(data_type=STRING, dims=[2], int32_data=[1, 2]),
        "segment": dict(data_type=F, dims=[2], raw_data=bytes(8), segment=T.Segment(begin=0, end=1)),
        "int4 too short": dict(data_type=T.INT4, dims=[9], raw_data=bytes(4)),
        "int4 many too short": dict(data_type=T.INT4, dims=[9000], raw_data=bytes(4400)),
        "external without location": dict(data_type=F, dims=[2], data_location=T.EXTERNAL),
    }
    for name, fields in broken.items():
        yield Case(f"tensor: {name}", stored(**fields), "Fail")
    huge = T(name="c", data_type=F, dims=[2], raw_data=np.array([1, 2], np.float32).tobytes())
    huge.external_data.add(key="span-0000000000000000", value="0")
    yield Case("tensor: guessed span", model(node("Add", "x c"), huge), None)
    text = T(name="c", data_type=STRING, dims=[2], string_data=[b"\xff\xfe", b"\xc3("])
    yield Case(
        "tensor: strings that are not UTF-8", model(node("Identity", "c"), text, outputs=[value("y", STRING)]), None
    )
    other = model(node("Add", "x c"), const("c", [1.0, 2.0]), inputs=[value("x", F, [2]), value("c", I64, [2])])
    yield Case("tensor: differs from its input", other, "InvalidGraph")

    def sparse(values: list[float], indices: object, dims: list[int], at: object = None) -> onnx.ModelProto:
        at = at or T(data_type=I64, dims=np.shape(indices), int64_data=np.ravel(indices).tolist())
        made = onnx.SparseTensorProto(values=const("c", values), indices=at, dims=dims)
        return model(node("Add", "x c"), made)

    yield Case("sparse: fine", sparse([1.0], [1], [2]), None)
    for name, content in {
        "index beyond": ([1.0], [2], [2]),
        "negative index": ([1.0], [-1], [2]),
        "index 2^62": ([1.0], [1 << 62], [2]),
        "coordinates beyond": ([1.0], [[0, 5]], [1, 2]),
        "more indices than values": ([1.0], [0, 1], [2]),
        "negative dimension": ([1.0], [0], [-2]),
        "2^40 elements": ([1.0], [0], [1 << 40]),
        "2^63 elements": ([1.0], [0], [1 << 32, 1 << 32]),
        "coordinates of another rank": ([1.0], [[0, 0, 0]], [1, 2]),
    }.items():
        yield Case(f"sparse: {name}", sparse(*content))
    yield Case("sparse: float indices", sparse([1.0], [], [2], const("i", [0.0])), "InvalidGraph")


def _true() -> onnx.TensorProto:
    return const("c", True, bool)


def _if(condition: str = "c", then: list[onnx.NodeProto] | None = None, outputs: str = "t") -> onnx.NodeProto:
    branch = body(then or [node("Relu", "x", "t")], [], outputs)
    return node("If", condition, then_branch=branch, else_branch=body([node("Abs", "x", "e")], [], "e"))


def _renamed(n: onnx.NodeProto, output: str = "", op_type: str = "") -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(n)
    if output:
        copy.output[0] = output
    copy.op_type = op_type or n.op_type
    return copy


def _edit(change) -> onnx.ModelProto:  # type: ignore[no-untyped-def]
    made = model(node("Relu", "x"))
    change(made)
    return made


def _bytes(made: onnx.ModelProto, old: bytes, new: bytes) -> bytes:
    assert len(old) == len(new)
    return made.SerializeToString().replace(old, new)


def _text(field: str) -> bytes:
    made = model(node("Relu", "x"))
    setattr(made.graph.node[0], field, "PLACEHOLDER")
    return _bytes(made, b"PLACEHOLDER", b"\xffLACEHOLDE\xfe")


def _odd_kind(kind: int) -> AttributeProto:
    """An attribute whose kind no enum knows; protobuf keeps it as an unknown field."""
    return AttributeProto.FromString(
        AttributeProto(name="alpha", f=0.5).SerializeToString() + bytes((0xA0, 0x01, kind))
    )
