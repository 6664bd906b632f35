//! Statements, instructions and operands.

use super::super::ast::{Guard, Number, Operand, Statement};
use super::{body, check_operands, instructions, kernel, read, refuse};
use proptest::prelude::*;

fn names(names: &[&'static str]) -> Vec<Operand<'static>> {
    names.iter().map(|name| Operand::Name(name)).collect()
}

fn int(value: i64) -> Operand<'static> {
    Operand::Number(Number::Int(value))
}

fn address(base: &'static str, offset: i64) -> Operand<'static> {
    Operand::Address { base: Some(base), offset }
}

#[test]
fn opcodes_are_split_at_their_dots() {
    let text = kernel(
        "ld.global.nc.L2::128B.v2.f32 {%f1, %f2}, [%rd1];\nret;\n@%p1 bra L;\n@!p add .s32 a, b, c;\n\
         mbarrier.try_wait.parity.shared::cta.b64 P1, [%r10], %r11;",
    );
    let module = read(&text);
    let seen = instructions(body(&module));
    assert_eq!(seen[0].words, ["ld", "global", "nc", "L2::128B", "v2", "f32"]);
    assert_eq!((seen[0].guard, seen[0].line), (None, 5));
    assert!(seen[1].words == ["ret"] && seen[1].operands.is_empty());
    assert_eq!(seen[2].guard, Some(Guard { register: "%p1", negated: false }));
    assert_eq!((seen[3].guard, seen[3].line), (Some(Guard { register: "p", negated: true }), 8));
    assert_eq!(seen[3].words, ["add", "s32"]);
    assert_eq!(seen[4].words, ["mbarrier", "try_wait", "parity", "shared::cta", "b64"]);
}

#[test]
fn operands_have_every_form() {
    check_operands("mov.u32 %r1, %tid.x;", &names(&["%r1", "%tid.x"]));
    check_operands("mov.u64 %rd1, %clock64;", &names(&["%rd1", "%clock64"]));
    check_operands("mov.b32 %r1, %envreg3;", &names(&["%r1", "%envreg3"]));
    check_operands("mov.u64 $x$1, _ZN1a1b2vvE.part%0;", &names(&["$x$1", "_ZN1a1b2vvE.part%0"]));
    check_operands("mov.u32 %r1, WARP_SZ;", &[Operand::Name("%r1"), int(32)]);
    check_operands("mov.u32 %r1, -4;", &[Operand::Name("%r1"), int(-4)]);
    check_operands("mov.u32 %r1, (1 + 2) * 4;", &[Operand::Name("%r1"), int(12)]);
    check_operands("mov.u32 %r1, !3 + 1;", &[Operand::Name("%r1"), int(1)]);
    check_operands("mov.u32 %r1, !WARP_SZ;", &[Operand::Name("%r1"), int(0)]);
    check_operands("mov.f32 %f1, 0f3F800000;", &[Operand::Name("%f1"), Operand::Number(Number::F32(0x3f80_0000))]);
    check_operands("mov.u64 %rd1, table+8;", &[Operand::Name("%rd1"), Operand::Offset("table", 8)]);
    check_operands("mov.u64 %rd1, table - 2 * 4 + 1;", &[Operand::Name("%rd1"), Operand::Offset("table", -7)]);
    check_operands(
        "setp.eq.and.s32 %p1|%p2, a, b, !%p3;",
        &[Operand::Pair("%p1", "%p2"), Operand::Name("a"), Operand::Name("b"), Operand::Not("%p3")],
    );
    check_operands("elect.sync _|p, 0xFFFFFFFF;", &[Operand::Pair("_", "p"), int(0xffff_ffff)]);
    check_operands("mbarrier.arrive.shared.b64 _, [a];", &[Operand::Sink, address("a", 0)]);
    check_operands("bar.sync 0;", &[int(0)]);
}

#[test]
fn addresses_have_a_base_and_an_offset() {
    check_operands("ld.u32 a, [b];", &[Operand::Name("a"), address("b", 0)]);
    check_operands("ld.u32 a, [ b + 8 ];", &[Operand::Name("a"), address("b", 8)]);
    check_operands("ld.u32 a, [b+-4];", &[Operand::Name("a"), address("b", -4)]);
    check_operands("ld.u32 a, [b-4];", &[Operand::Name("a"), address("b", -4)]);
    check_operands("ld.u32 a, [16];", &[Operand::Name("a"), Operand::Address { base: None, offset: 16 }]);
    check_operands("ld.u32 a, [b].unified;", &[Operand::Name("a"), address("b", 0)]);
    check_operands("cp.async.cg [a], [b], 16;", &[address("a", 0), address("b", 0), int(16)]);
    let pair = |a, b| Operand::Vector(names(&[a, b]));
    check_operands(
        "cp.async.bulk.tensor.2d [s], [map+64, {x, y}, {u, v}], [bar];",
        &[
            address("s", 0),
            Operand::Tensor { base: "map", offset: 64, parts: vec![pair("x", "y"), pair("u", "v")] },
            address("bar", 0),
        ],
    );
}

#[test]
fn vectors_and_lists_hold_operands() {
    check_operands(
        "mov.b64 {_, %r1}, %rd1;",
        &[Operand::Vector(vec![Operand::Sink, Operand::Name("%r1")]), Operand::Name("%rd1")],
    );
    check_operands("st.v2.u32 [a], {1, -2};", &[address("a", 0), Operand::Vector(vec![int(1), int(-2)])]);
    let list = |items: &[&'static str]| Operand::List(names(items));
    check_operands(
        "call (retval0),\nf,\n(\nparam0,\nparam1\n)\n, prototype_0;",
        &[list(&["retval0"]), Operand::Name("f"), list(&["param0", "param1"]), Operand::Name("prototype_0")],
    );
    check_operands("call.uni f, ();", &[Operand::Name("f"), list(&[])]);
    check_operands("call f;", &names(&["f"]));
}

#[test]
fn bodies_hold_labels_blocks_places_and_prototypes() {
    let text = kernel(
        "$L__BB0_1: LAB_WAIT:\n{ // callseq 0, 0\n.reg .b32 %temp; ;\n{ ret; }\n}\n.pragma \"nounroll\";\n\
         .loc\t1 2 25, function_name $L__info_string1+4, inlined_at 1 3 26\n\
         proto : .callprototype (.param .b32 _) _ (.param .b8 _[12], .param .f32 _) .noreturn;\n\
         none: .callprototype _ .abi_preserve 4;\n\
         ts: .branchtargets L1, L2;\nfs: .calltargets f;\n@p brx.idx %r0, ts;;\nL1: }\n.entry other() {",
    );
    let module = read(&text);
    let statements = body(&module);
    assert!(matches!(statements[0], Statement::Label("$L__BB0_1")));
    assert!(matches!(statements[1], Statement::Label("LAB_WAIT")));
    let Statement::Block(block) = &statements[2] else { panic!("{statements:?}") };
    assert!(matches!(block[0], Statement::Register { name: "%temp", .. }));
    assert!(matches!(&block[1], Statement::Block(inner) if inner.len() == 1));
    assert!(matches!(statements[3], Statement::Location { file: 1, line: 2, column: 25 }));
    let Statement::Prototype { name: "proto", returns, params } = &statements[4] else { panic!("{statements:?}") };
    assert_eq!((returns.len(), params.len(), params[0].bytes, params[0].name), (1, 2, Some(12), "_"));
    assert!(matches!(&statements[5], Statement::Prototype { name: "none", returns, params }
        if returns.is_empty() && params.is_empty()));
    assert!(matches!(&statements[6], Statement::Targets { name: "ts", labels } if labels == &["L1", "L2"]));
    assert!(matches!(&statements[7], Statement::Targets { name: "fs", labels } if labels == &["f"]));
    assert!(matches!(statements[8], Statement::Instruction(_)));
    assert!(matches!(statements[9], Statement::Label("L1")));
    assert_eq!(statements.len(), 10);
}

#[test]
fn bad_statements_are_refused() {
    for (code, message) in [
        ("add.s32 a, b, c }", "found `}`, expected `;` or `,` after an operand"),
        ("add.s32 a b;", "found `b`, expected `;` or `,` after an operand"),
        ("add.s32 a, ;", "found `;`, expected an operand"),
        ("add.s32 a, \"b\";", "found `\"b\"`, expected an operand"),
        ("add..s32 a;", "found `add..s32`, expected an instruction"),
        ("%r1 a;", "found `%r1`, expected an instruction, or `:` after a label"),
        ("_ a;", "found `_`, expected an instruction"),
        ("5;", "found `5`, expected an instruction, a label, a declaration or `}`"),
        ("@5 ret;", "found `5`, expected the predicate of a guard"),
        ("@p;", "found `;`, expected an instruction after its guard"),
        ("ld.u32 a, [];", "found `]`, expected an address"),
        ("ld.u32 a, [b;", "found `;`, expected `]` after an address"),
        ("ld.u32 a, [b+c];", "found `c`, expected a number"),
        ("ld.u32 a, [1.5];", "found a float where an integer is needed"),
        ("ld.u32 a, [b,];", "found `]`, expected an operand"),
        ("ld.u32 a, b[4];", "an index after a name is not supported"),
        ("mov.b64 {}, a;", "found `}`, expected an operand"),
        ("mov.b64 {a,}, b;", "found `}`, expected an operand"),
        ("mov.b64 {a, b;", "found `;`, expected `}` or `,` after an operand"),
        ("shfl.b32 a|5, b;", "found `5`, expected a register after `|`"),
        ("mov.u64 a, b+0x7fffffffffffffff+1;", "the offset does not fit in 64 bits"),
        (".func f() { }", "the directive `.func` is not supported in the body of a function"),
        (".loc 1 2;", "found `;`, expected the column of `.loc`"),
        (".loc 1 2 3, prologue_end", "found `prologue_end`, expected `function_name` or `inlined_at`"),
        ("x: .branchtargets N<5>;", "found `<`, expected `;` or `,` after a target"),
        ("x: .callprototype y;", "found `y`, expected `_`"),
        ("x: .callprototype _ .fancy;", "the directive `.fancy` is not supported for a prototype"),
    ] {
        let error = refuse(&format!(".entry k() {{\n{code}"));
        assert!(error.message.contains(message), "{code}: {error}");
        assert_eq!(error.line, 5, "{code}");
    }
}

#[test]
fn deep_nesting_is_refused_and_not_followed() {
    let deep = 200_000;
    for open in ["{", "mov.u32 a, (", "mov.u32 a, -", "mov.u32 a, {", "mov.u32 a, [b, {", "mov.u32 a, 1 ? "] {
        let (first, rest) = open.split_at(open.len() - 1);
        let code = match open {
            "mov.u32 a, 1 ? " => format!("mov.u32 a, {}", "1 ? ".repeat(deep)),
            _ => format!("{first}{}", rest.repeat(deep)),
        };
        assert!(refuse(&format!(".entry k() {{ {code}")).message.contains("levels deep"), "{open}");
    }
    let nested = format!("{}ret;{}", "{".repeat(60), "}".repeat(60));
    let text = kernel(&nested);
    assert_eq!(instructions(body(&read(&text))).len(), 1);
}

/// A name that is neither `_` nor `WARP_SZ`.
fn name() -> impl Strategy<Value = String> {
    "[%$]?[a-z][a-z0-9_$]{0,6}(\\.[xyz])?"
}

/// An operand as text, and what it must become.
fn operand() -> impl Strategy<Value = (String, String)> {
    let offset = || any::<i32>().prop_map(i64::from);
    let scalar = prop_oneof![
        name().prop_map(|n| (n.clone(), format!("{:?}", Operand::Name(&n)))),
        name().prop_map(|n| (format!("!{n}"), format!("{:?}", Operand::Not(&n)))),
        (name(), name()).prop_map(|(a, b)| (format!("{a}|{b}"), format!("{:?}", Operand::Pair(&a, &b)))),
        any::<i64>().prop_map(|v| (format!("{v}"), format!("{:?}", int(v)))),
        any::<u32>().prop_map(|v| (format!("0f{v:08x}"), format!("{:?}", Operand::Number(Number::F32(v))))),
        Just(("_".to_owned(), format!("{:?}", Operand::Sink))),
        (name(), offset()).prop_map(|(n, v)| (format!("{n} + {v}"), format!("{:?}", Operand::Offset(&n, v)))),
        (name(), offset())
            .prop_map(|(n, v)| (format!("[{n}+{v}]"), format!("{:?}", Operand::Address { base: Some(&n), offset: v }))),
    ];
    scalar.prop_recursive(3, 16, 4, |inner| {
        prop::collection::vec(inner, 1..4).prop_map(|parts| {
            let (texts, shown): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
            (format!("{{{}}}", texts.join(", ")), format!("Vector([{}])", shown.join(", ")))
        })
    })
}

proptest! {
    #[test]
    fn operands_survive_printing(operands in prop::collection::vec(operand(), 1..6)) {
        let (texts, expected): (Vec<_>, Vec<_>) = operands.into_iter().unzip();
        let text = kernel(&format!("op.b32 {};", texts.join(" , ")));
        let module = read(&text);
        let seen: Vec<_> = instructions(body(&module))[0].operands.iter().map(|o| format!("{o:?}")).collect();
        prop_assert_eq!(seen, expected);
    }
}
