//! Variables, registers and initial values.

use super::super::ast::{Init, Number, Space, Statement, Type, Variable};
use super::{body, kernel, read, refuse, text};

fn with_variable(code: &str, check: impl FnOnce(&Variable<'_>)) {
    let text = text(code);
    check(&read(&text).variables[0]);
}

fn integers(variable: &Variable<'_>) -> Vec<i64> {
    let value = |init: &Init<'_>| match init {
        Init::Value(Number::Int(value)) => *value,
        other => panic!("{other:?}"),
    };
    variable.init.iter().map(value).collect()
}

#[test]
fn sizes_and_alignments_are_in_bytes() {
    let cases = [
        (".global .u32 x;", Space::Global, Type::U32, 4, Some(4)),
        (".global .align 16 .b8 x[12];", Space::Global, Type::B8, 16, Some(12)),
        (".global .align 2 .b64 x;", Space::Global, Type::B64, 8, Some(8)),
        (".const .f64 x[2][3];", Space::Const, Type::F64, 8, Some(48)),
        (".shared .v4 .f32 x[2];", Space::Shared, Type::F32, 16, Some(32)),
        (".visible .global .v2 .b16 x;", Space::Global, Type::B16, 4, Some(4)),
        (".extern .shared .align 16 .b8 x[];", Space::Shared, Type::B8, 16, None),
        (".shared .align 1024 .b8 x[4 * (2 + 2)];", Space::Shared, Type::B8, 1024, Some(16)),
        (".global .b128 x[1];", Space::Global, Type::B128, 16, Some(16)),
        (".global .attribute(.managed) .align 4 .u32 x;", Space::Global, Type::U32, 4, Some(4)),
        (".global .attribute(.managed, .unified(0xAB, 2)) .f32 x;", Space::Global, Type::F32, 4, Some(4)),
        (".weak.global.align 8 .u64 x[0];", Space::Global, Type::U64, 8, Some(0)),
    ];
    for (code, space, ty, align, bytes) in cases {
        with_variable(code, |variable| {
            assert_eq!(variable.name, "x", "{code}");
            assert_eq!((variable.space, variable.ty), (space, ty), "{code}");
            assert_eq!((variable.align, variable.bytes), (align, bytes), "{code}");
            assert_eq!(variable.external, code.contains(".extern"), "{code}");
            assert_eq!(variable.line, 4, "{code}");
        });
    }
}

#[test]
fn one_declaration_may_name_several() {
    let text = text(".global .u16 a, b[3], c = 7;");
    let module = read(&text);
    let seen: Vec<_> = module.variables.iter().map(|v| (v.name, v.bytes, v.init.len())).collect();
    assert_eq!(seen, [("a", Some(2), 0), ("b", Some(6), 0), ("c", Some(2), 1)]);
}

#[test]
fn nested_initial_values_are_flattened_and_filled() {
    for (code, expected, bytes) in [
        (".global .s32 x[3][2] = {{1, 2}, {3}};", vec![1, 2, 3, 0], 24),
        (".global .s32 x[][2] = {{-1, 0}, {}, {4, 5,}};", vec![-1, 0, 0, 0, 4, 5], 24),
        (".global .u8 x[] = {1, 2, 3};", vec![1, 2, 3], 3),
        (".global .b8 x[8] = {1, 2};", vec![1, 2], 8),
        (".global .s32 x[2][2] = {1, 2, 3, 4};", vec![1, 2, 3, 4], 16),
        (".global .v2 .u32 x[2] = {{1}, {2, 3}};", vec![1, 0, 2, 3], 16),
        (".global .u32 x[][3] = {1, 2, 3, 4};", vec![1, 2, 3, 4], 24),
        (".global .u32 x = {5};", vec![5], 4),
    ] {
        with_variable(code, |variable| {
            assert_eq!(integers(variable), expected, "{code}");
            assert_eq!(variable.bytes, Some(bytes), "{code}");
        });
    }
}

#[test]
fn initial_values_may_be_addresses() {
    let code = ".global .u64 x[] = {f, $str$1+4, generic(a)+8, generic(b + 2)-4, generic, 0f3F800000, -1.5};";
    with_variable(code, |variable| {
        let address = |name, generic, offset| Init::Address { name, generic, offset };
        let expected = [
            address("f", false, 0),
            address("$str$1", false, 4),
            address("a", true, 8),
            address("b", true, -2),
            address("generic", false, 0),
            Init::Value(Number::F32(0x3f80_0000)),
            Init::Value(Number::F64((-1.5f64).to_bits())),
        ];
        assert_eq!(variable.init, expected);
    });
}

#[test]
fn masks_take_one_byte() {
    let code = ".global .u8 x[] = {0xFF(a), 0xFF00(generic(a)+4), 0xff00000000000000(a-1), 0xFF00(131187), 0xFF + 1};";
    with_variable(code, |variable| {
        let byte = |name, generic, offset, shift| Init::Byte { name, generic, offset, shift };
        let expected = [
            byte("a", false, 0, 0),
            byte("a", true, 4, 8),
            byte("a", false, -1, 56),
            Init::Value(Number::Int(131_187 >> 8 & 0xff)),
            Init::Value(Number::Int(256)),
        ];
        assert_eq!(variable.init, expected);
    });
}

#[test]
fn bad_declarations_are_refused() {
    for (code, message) in [
        (".global x;", "found `x`, expected the type of a variable"),
        (".global .u32 5;", "found `5`, expected the name of a variable"),
        (".global .u32 x", "the text ends here, where `;` or `,` after a variable was expected"),
        (".global .u33 x;", "the directive `.u33` is not supported in a declaration"),
        (".global .u32 .u32 x;", "the directive `.u32` is not supported after the type"),
        (".global .pred x;", "predicates have no address"),
        (".global .texref x;", "`.texref` variables are not supported"),
        (".global .align 3 .u32 x;", "found `3`, expected an alignment, a power of two"),
        (".global .align 0 .u32 x;", "found `0`, expected an alignment, a power of two"),
        (".global .align 0x8000000000 .u32 x;", "the alignment is too large"),
        (".global .v4 .f64 x;", "a vector of 32 bytes"),
        (".global .u32 x[-1];", "-1 is not a size"),
        (".global .u32 x[0x7fffffffffffffff];", "the size of the array does not fit"),
        (".global .u32 x[0x100000000][0x100000000][8];", "the size of the array does not fit"),
        (".global .u32 x[2] = {1, 2, 3};", "more initial values than the 2"),
        (".global .u32 x[2] = {{1}};", "these braces match no dimension"),
        (".global .u32 x[2][2] = {1, {2}};", "these braces match no dimension"),
        (".global .u32 x[2][2] = {{1, 2, 3}};", "more initial values than the 2"),
        (".global .u32 x[0][0] = {{1}};", "more initial values than the 0"),
        (".global .u32 x[2] = 1;", "found `1`, expected `{` before the initial values"),
        (".global .b8 x[2][0x10000000] = {{1}, {1}};", "too many initial values are left out"),
        (".global .b8 x[3] = \"ab\";", "expected `{`"),
        (".extern .global .u32 x = 1;", "an initial value, allowed only"),
        (".shared .u32 x = 1;", "an initial value, allowed only"),
        (".global .u8 x = 0x1FE(a);", "found the mask `0x1FE`"),
        (".global .u8 x = 0(a);", "found the mask `0`"),
        (".global .u64 x = generic(a;", "found `;`, expected `)` after the name in `generic`"),
        (".global .u64 x = a + 0x7fffffffffffffff + 1;", "the offset does not fit"),
        (".global .u32 x<4>;", "numbered names are supported for registers only"),
        (".global .attribute(.other) .u32 x;", "expected the attribute `.managed` or `.unified`"),
        (".local .u32 x;", "`.local` variables belong in a function"),
    ] {
        let error = refuse(code);
        assert!(error.message.contains(message), "{code}: {error}");
        assert_eq!(error.line, 4, "{code}");
    }
    let many = format!(".global .u32 x{};", "[1]".repeat(17));
    assert!(refuse(&many).message.contains("more than 16 dimensions"));
}

#[test]
fn registers_keep_their_counts() {
    let text = kernel(".reg .pred %p<3>, q;\n.reg .b64 %SP;\n.reg .bf16 h<0>;");
    let module = read(&text);
    let seen: Vec<_> = body(&module)
        .iter()
        .map(|statement| match statement {
            Statement::Register { ty, name, count, line } => (*ty, *name, *count, *line),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        (Type::Pred, "%p", Some(3), 5),
        (Type::Pred, "q", None, 5),
        (Type::B64, "%SP", None, 6),
        (Type::B16, "h", Some(0), 7),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn bad_registers_are_refused() {
    for (code, message) in [
        (".reg .v2 .f32 x;", "vector registers are not supported"),
        (".reg x;", "found `x`, expected the type of registers"),
        (".reg .b32 x<4294967296>;", "a number of registers 4294967296 does not fit in 32 bits"),
        (".reg .b32 x<-1>;", "found `-`, expected a number of registers"),
        (".reg .b32 x<4;", "found `;`, expected `>` after a number of registers"),
        (".reg .b32 x y;", "found `y`, expected `;` or `,` after a register"),
    ] {
        let error = refuse(&format!(".entry k() {{ {code} }}"));
        assert!(error.message.contains(message), "{code}: {error}");
    }
}

#[test]
fn functions_hold_variables_of_every_space() {
    let text = kernel(
        ".local .align 16 .b8 depot[64];\n.shared .f32 tile[256];\n.param .b32 param0;\n.extern .shared .b8 more[];",
    );
    let module = read(&text);
    let seen: Vec<_> = body(&module)
        .iter()
        .map(|statement| match statement {
            Statement::Variable(variable) => (variable.space, variable.name, variable.bytes, variable.external),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        (Space::Local, "depot", Some(64), false),
        (Space::Shared, "tile", Some(1024), false),
        (Space::Param, "param0", Some(4), false),
        (Space::Shared, "more", None, true),
    ];
    assert_eq!(seen, expected);
}
